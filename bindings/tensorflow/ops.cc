// TensorFlow's ops of rueda, registered when tf.load_op_library opens this library.
//
// Collectives are not stateful: TensorFlow would run stateful ones in the order of the program, and
// ranks whose orders differ would wait for each other. A stateless op of constants, though, runs
// once, while the program is optimised, and its result is a constant from then on. So each has one
// input more, a token that no optimisation knows and nothing waits for: rueda.tensorflow._ops.
#include <rueda/rueda.h>

#include <initializer_list>

#include "bindings/calls/calls.h"
#include "bindings/tensorflow/collective.h"
#include "bindings/tensorflow/place.h"
#include "bindings/tensorflow/tensorflow_c.h"

namespace rueda::tensorflow {
namespace {

const char* problem = nullptr;

using ShapeFunction = void (*)(TF_ShapeInferenceContext*, TF_Status*);

void shapes_of_inputs(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeHandle* shape = tf.NewShapeHandle();
  const int64_t count =
      tf.ShapeInferenceContextNumInputs(context) - 1;  // the last one is the token
  for (int i = 0; i < count && tf.GetCode(status) == 0; ++i) {
    tf.ShapeInferenceContextGetInput(context, i, shape, status);
    if (tf.GetCode(status) == 0) tf.ShapeInferenceContextSetOutput(context, i, shape, status);
  }
  tf.DeleteShapeHandle(shape);
}

void shapes_unknown(TF_ShapeInferenceContext* context, TF_Status* status) {
  tf.ShapeInferenceContextSetUnknownShape(context, status);
}

void shape_scalar(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeHandle* scalar = tf.ShapeInferenceContextScalar(context);
  tf.ShapeInferenceContextSetOutput(context, 0, scalar, status);
  tf.DeleteShapeHandle(scalar);
}

struct Op {
  const char* name;
  std::initializer_list<const char*> inputs;
  std::initializer_list<const char*> outputs;
  std::initializer_list<const char*> attributes;
  ShapeFunction shapes;
  bool is_stateful = false;
};

void register_op(const Op& op) {
  TF_OpDefinitionBuilder* builder = tf.NewOpDefinitionBuilder(op.name);
  for (const char* each : op.attributes) tf.OpDefinitionBuilderAddAttr(builder, each);
  for (const char* each : op.inputs) tf.OpDefinitionBuilderAddInput(builder, each);
  for (const char* each : op.outputs) tf.OpDefinitionBuilderAddOutput(builder, each);
  // It makes the op stateful whatever its argument is.
  if (op.is_stateful) tf.OpDefinitionBuilderSetIsStateful(builder, true);
  tf.OpDefinitionBuilderSetShapeInferenceFunction(builder, op.shapes);
  Status status;
  tf.RegisterOpDefinition(builder, status.get());
  if (!status.ok()) problem = op.name;
}

void register_kernel(const char* op, TF_KernelBuilder* builder) {
  Status status;
  tf.RegisterKernelBuilder(op, builder, status.get());
  if (!status.ok()) problem = op;
}

void register_collective(const char* name, std::initializer_list<const char*> inputs,
                         std::initializer_list<const char*> outputs, const char* types,
                         ShapeFunction shapes) {
  register_op({name,
               inputs,
               outputs,
               {types, "kind: int", "reduce_op: int", "root: int", "process_set: int",
                "prescale: int", "postscale: int", "tensor_name: string"},
               shapes});
  register_kernel(name, tf.NewAsyncKernelBuilder(name, "CPU", make_collective, run_collective,
                                                 delete_collective));
}

void register_place(const char* name, std::initializer_list<const char*> outputs) {
  register_op({name, {}, outputs, {"what: int", "process_set: int"}, shape_scalar, true});
  register_kernel(name, tf.NewKernelBuilder(name, "CPU", make_place, run_place, delete_place));
}

[[gnu::constructor]] void register_all() {
  problem = find_functions();
  if (problem != nullptr) return;
  register_collective("RuedaSame", {"tensors: T", "token: int32"}, {"results: T"},
                      "T: list(type) >= 1", shapes_of_inputs);
  register_collective("RuedaRows", {"tensors: T", "token: int32"}, {"results: T"},
                      "T: list(type) >= 1", shapes_unknown);
  register_collective("RuedaAlltoall", {"tensor: T", "splits: int64", "token: int32"},
                      {"result: T", "received: int32"}, "T: type", shapes_unknown);
  register_place("RuedaPlace", {"value: int32"});
}

}  // namespace
}  // namespace rueda::tensorflow

extern "C" {

// What kept the ops from being registered; nullptr: nothing.
RUEDA_API const char* rueda_tf_problem(void) { return rueda::tensorflow::problem; }

// The context that ops use from now on; NULL: none.
RUEDA_API void rueda_tf_use(rueda_context* context) {
  rueda::calls::Calls::instance().use(context);
}

RUEDA_API uint32_t rueda_tf_abi_version(void) { return RUEDA_ABI_VERSION; }
}
