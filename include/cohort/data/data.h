#pragma once

// Datasets, samplers and the loader.
#include "cohort/data/data_loader.h"
#include "cohort/data/dataset.h"
#include "cohort/data/fashion_mnist.h"
#include "cohort/data/idx.h"
#include "cohort/data/sampler.h"
