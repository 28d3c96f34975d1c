/**
 * Creates the body of a create request of about 2 KB, the size that a real program's client would send. `{{n}}` makes
 * the name unique.
 */
export function createBody(name = 'bench-{{n}}') {
  return {
    name,
    image: { type: 'oci', reference: 'localhost/demo' },
    resources: { vcpus: 1, memory_mib: 512 },
    labels: { purpose: 'benchmark' },
    env: Array.from({ length: 24 }, (_, index) => ({
      key: `SETTING_${String(index)}`,
      value: `a value of some length, number ${String(index)}`,
    })),
    runtime: { workdir: '/', scripts: { hello: '#!/bin/sh\necho hello\n'.repeat(8) } },
  }
}
