// The kernel of all collectives: one run of it starts one operation, or a group of them, and is
// done when the last has ended. No thread of TensorFlow waits meanwhile.
#pragma once

#include "bindings/tensorflow/tensorflow_c.h"

namespace rueda::tensorflow {

// For TF_NewAsyncKernelBuilder. Inputs are the tensors, for alltoall their splits, and a token.
void* make_collective(TF_OpKernelConstruction* construction);
void run_collective(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done);
void delete_collective(void* kernel);

}  // namespace rueda::tensorflow
