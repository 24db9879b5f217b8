#pragma once

#include <exception>
#include <string>

namespace cohort::parallel {

// What the ranks tell each other of an exception. Never empty.
std::string what_of(const std::exception_ptr& error);

}  // namespace cohort::parallel
