#pragma once

// The whole library.
#include "cohort/autograd/autograd.h"
#include "cohort/autograd/gradcheck.h"
#include "cohort/comm/flight_recorder.h"
#include "cohort/comm/init.h"
#include "cohort/comm/local_world.h"
#include "cohort/comm/process_group.h"
#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/core/logging.h"
#include "cohort/core/tensor.h"
#include "cohort/data/data.h"
#include "cohort/models/models.h"
#include "cohort/nn/nn.h"
#include "cohort/ops/ops.h"
#include "cohort/optim/optim.h"
#include "cohort/parallel/ddp.h"
