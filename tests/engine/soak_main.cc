#include "engine/soak.h"

int main(int argc, char** argv) { return litecache::RunSoak(argc, argv); }
