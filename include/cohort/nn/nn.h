#pragma once

// All modules.
#include "cohort/nn/activation.h"
#include "cohort/nn/conv.h"
#include "cohort/nn/embedding.h"
#include "cohort/nn/functional.h"
#include "cohort/nn/init.h"
#include "cohort/nn/linear.h"
#include "cohort/nn/module.h"
#include "cohort/nn/norm.h"
#include "cohort/nn/sequential.h"
#include "cohort/nn/visit_tensors.h"
