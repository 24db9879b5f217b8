#pragma once

// Optimizers, schedules, gradient clipping and loss scaling.
#include "cohort/optim/adam.h"
#include "cohort/optim/clip_grad.h"
#include "cohort/optim/grad_scaler.h"
#include "cohort/optim/optimizer.h"
#include "cohort/optim/schedule.h"
#include "cohort/optim/sgd.h"
