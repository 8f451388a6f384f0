#include "engine/soak.h"
#include "lab/register_policies.h"

int main(int argc, char** argv) {
  litecache::lab::RegisterPolicies();
  return litecache::RunSoak(argc, argv);
}
