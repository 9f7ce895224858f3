/* rueda.h compiles as the first and only header, in C and in C++. */
#include "rueda/rueda.h"

int header_alone(const rueda_op* op);
int header_alone(const rueda_op* op) { return op->struct_size == sizeof(rueda_op); }
