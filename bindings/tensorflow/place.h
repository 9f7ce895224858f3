// The kernel of numbers that a program asks for when it runs, not when it is traced: ranks, sizes.
#pragma once

#include "bindings/tensorflow/tensorflow_c.h"

namespace rueda::tensorflow {

void* make_place(TF_OpKernelConstruction* construction);
void run_place(void* kernel, TF_OpKernelContext* context);
void delete_place(void* kernel);

}  // namespace rueda::tensorflow
