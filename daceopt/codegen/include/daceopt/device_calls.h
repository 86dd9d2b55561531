// What the frame of a program for a device calls (device.h has it).
#pragma once
#include <cstdint>

extern "C" void daceopt_copy(void* stream, void* to, const void* from, int64_t bytes);
