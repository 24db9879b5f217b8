#pragma once

#include <string>
#include <vector>

#include "cohort/nn/module.h"
#include "cohort/parallel/ddp_options.h"

namespace cohort::parallel {

// What is wrong with the options, or with the module under them, on this rank alone.
void check_options(const nn::Module& module, const DDPOptions& options);

// What all ranks must have in common, one line each.
std::vector<std::string> signature(const std::vector<nn::NamedTensor>& parameters,
                                   const std::vector<nn::NamedTensor>& buffers,
                                   const DDPOptions& options);

}  // namespace cohort::parallel
