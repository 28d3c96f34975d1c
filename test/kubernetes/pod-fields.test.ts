import assert from 'node:assert/strict'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { after, before, test } from 'node:test'
import type { Mount, Patch, Rlimit } from '../../src/domain/spec/spec.ts'
import { makeDesiredRun } from '../support/desired-run.ts'
import { openKubernetesDriver, type TestDriver } from '../support/kubernetes-driver.ts'
import { kubectl, whyNoKubernetes } from '../support/kubernetes.ts'
import { HELPER_IMAGE, makeRealNamespace, type RealNamespace } from '../support/real-kubernetes.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../support/spec.ts'
import { waitUntil } from '../support/wait.ts'
import { POD_SPEC } from '../worker/drivers/kubernetes-conformance.ts'

// Fields of a specification that only a kubelet can prove.

const skip = whyNoKubernetes()
const LIMIT = { skip, timeout: 60_000 }
const NEVER = new AbortController().signal
const OPTIONS = { readonly: false, noexec: false, nosuid: false, nodev: false }
let namespace: RealNamespace
let driver: TestDriver

before(async () => {
  if (skip !== false) return
  namespace = await makeRealNamespace('pod-fields')
  driver = await openKubernetesDriver({
    dir: join(namespace.folder, 'driver'),
    access: namespace.access,
    helperImage: HELPER_IMAGE,
    runtimeClass: 'other',
  })
})
after(async () => {
  if (skip !== false) return
  for (const { run_id } of await driver.list()) await driver.remove(run_id)
  await driver.close()
  await namespace.remove()
})

test('a tmpfs is in memory, ends at its size, and can be readonly; the Pod has the RuntimeClass', LIMIT, async () => {
  const mounts: readonly Mount[] = [
    { type: 'tmpfs', guest: '/cache', size_mib: 4, options: OPTIONS },
    { type: 'tmpfs', guest: '/empty', size_mib: null, options: { ...OPTIONS, readonly: true } },
  ]
  const desired = makeDesiredRun({ ...POD_SPEC, mounts })
  await driver.start(desired, NEVER)
  const guest = await driver.guestOf(desired.run_id)
  const run = async (script: string): Promise<string> => {
    const plain = { env: [], cwd: null, user: null, tty: null, rlimits: [] }
    const process = await guest.exec({ cmd: 'sh', args: ['-c', script], ...plain })
    const [out] = await Promise.all([text(process.stdout), process.exited])
    return out
  }
  assert.equal(await run('grep -c " /cache tmpfs " /proc/mounts'), '1\n')
  assert.equal(await run('head -c 8388608 /dev/zero >/cache/big 2>/dev/null || wc -c </cache/big'), '4194304\n')
  assert.equal(await run('touch /empty/x 2>/dev/null || echo refused'), 'refused\n')
  const [pod = ''] = await namespace.pods()
  assert.equal(await kubectl('get', '-n', 'pod-fields', pod, '-o', 'jsonpath={.spec.runtimeClassName}'), 'other')
  await driver.remove(desired.run_id)
})

test('limits hold for commands, and one above what the node allows is refused by name', LIMIT, async () => {
  const desired = makeDesiredRun({ ...POD_SPEC, rlimits: [{ resource: 'nofile', soft: 64, hard: 128 }] })
  await driver.start(desired, NEVER)
  const guest = await driver.guestOf(desired.run_id)
  const read = async (rlimits: readonly Rlimit[]): Promise<string> => {
    const plain = { env: [], cwd: null, user: null, tty: null, rlimits }
    const process = await guest.exec({ cmd: 'sh', args: ['-c', 'ulimit -Sn; ulimit -Hn'], ...plain })
    return await text(process.stdout)
  }
  assert.equal(await read([]), '64\n128\n')
  assert.equal(await read([{ resource: 'nofile', soft: 32, hard: 32 }]), '32\n32\n')
  await driver.remove(desired.run_id)
  const high = makeDesiredRun({ ...POD_SPEC, rlimits: [{ resource: 'nofile', soft: 64, hard: 2 ** 40 }] })
  await assert.rejects(driver.start(high, NEVER), /rlimits: nofile=64:1099511627776: Operation not permitted/)
  await driver.remove(high.run_id)
})

test(
  "patches have the sandbox's rights: what these allow is there before the workload, and the rest is refused",
  LIMIT,
  async () => {
    const text = (path: string): Patch => ({ type: 'text', path, content: 'ready', mode: null, replace: false })
    const cmd = ['sh', '-c', 'test "$(cat /tmp/patched/file)" = ready && exit 7']
    const runtime = { ...DEFAULT_SPEC_FOR_TESTS.runtime, entrypoint: [], cmd }
    const desired = makeDesiredRun({ ...POD_SPEC, runtime, patches: [text('/tmp/patched/file')] })
    await driver.start(desired, NEVER)
    const outcome = async () => (await driver.list()).find(({ run_id }) => run_id === desired.run_id)?.outcome
    await waitUntil(async () => (await outcome()) !== undefined, 30_000)
    assert.deepEqual(await outcome(), { kind: 'exited', code: 7 })
    await driver.remove(desired.run_id)
    const beyond = makeDesiredRun({ ...POD_SPEC, patches: [text('/etc/patched')] })
    await assert.rejects(driver.start(beyond, NEVER), /patch 0 \(text\): open: Permission denied .*: \/etc\/patched/)
    await driver.remove(beyond.run_id)
  },
)
