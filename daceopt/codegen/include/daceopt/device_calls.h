// What the frame of a program for a device calls (device.h has it).
#pragma once
#include <cstdint>

extern "C" void daceopt_read(void* stream, void* to, const void* from, int64_t bytes);
extern "C" void daceopt_copy(void* stream, void* to, const void* from, int64_t bytes);
extern "C" void daceopt_tick(void* stream, int64_t k);
extern "C" void daceopt_ticks(int64_t* times);
