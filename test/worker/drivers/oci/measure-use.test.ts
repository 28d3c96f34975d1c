import assert from 'node:assert/strict'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { measureUse } from '../../../../src/worker/drivers/oci/cgroups/measure-use.ts'

function makeTree(t: TestContext, files: Readonly<Record<string, string>>): string {
  const root = mkdtempSync(join(tmpdir(), 'sandyard-cgroups-'))
  t.after(() => rmSync(root, { recursive: true }))
  for (const [path, text] of Object.entries(files)) {
    mkdirSync(join(root, dirname(path)), { recursive: true })
    writeFileSync(join(root, path), text)
  }
  return root
}

const RUN = '0199b1f2-0000-7000-8000-000000000001'
const EXPECTED = [[RUN, { cpu_ns: 5_000_000, memory_bytes: 700, processes: 3 }]]

test('with cgroup v2 the use of each run is read, and a run whose cgroup is going away is left out', async (t) => {
  const root = makeTree(t, {
    'cgroup.controllers': 'cpu memory pids',
    [`sandyard/abc123/${RUN}/cpu.stat`]: 'usage_usec 5000\nuser_usec 1\n',
    [`sandyard/abc123/${RUN}/memory.current`]: '1000\n',
    [`sandyard/abc123/${RUN}/memory.stat`]: 'anon 1\ninactive_file 300\n',
    [`sandyard/abc123/${RUN}/pids.current`]: '3\n',
    [`sandyard/abc123/${RUN}.commands/pids.current`]: '1\n',
    'sandyard/abc123/going/pids.current': '0\n',
  })
  assert.deepEqual([...(await measureUse(root))], EXPECTED)
})

test('with cgroup v1 the use of each run is read from the hierarchies', async (t) => {
  const root = makeTree(t, {
    [`cpuacct/sandyard/abc123/${RUN}/cpuacct.usage`]: '5000000\n',
    [`memory/sandyard/abc123/${RUN}/memory.usage_in_bytes`]: '1000\n',
    [`memory/sandyard/abc123/${RUN}/memory.stat`]: 'inactive_file 1\ntotal_inactive_file 300\n',
    [`pids/sandyard/abc123/${RUN}/pids.current`]: '3\n',
  })
  assert.deepEqual([...(await measureUse(root))], EXPECTED)
  assert.deepEqual([...(await measureUse(join(root, 'nothing')))], [])
})
