#pragma once

// Optimizers, schedules and gradient clipping.
#include "cohort/optim/adam.h"
#include "cohort/optim/clip_grad.h"
#include "cohort/optim/optimizer.h"
#include "cohort/optim/schedule.h"
#include "cohort/optim/sgd.h"
