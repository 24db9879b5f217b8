#pragma once

// All operations.
#include "cohort/ops/batch_parts.h"
#include "cohort/ops/cast.h"
#include "cohort/ops/conv.h"
#include "cohort/ops/dropout.h"
#include "cohort/ops/elementwise.h"
#include "cohort/ops/embedding.h"
#include "cohort/ops/loss.h"
#include "cohort/ops/matmul.h"
#include "cohort/ops/norm.h"
#include "cohort/ops/random.h"
#include "cohort/ops/reduce.h"
#include "cohort/ops/shape.h"
#include "cohort/ops/softmax.h"
