import assert from 'node:assert/strict'
import { after, afterEach, before, test } from 'node:test'
import type { Mount, SandboxSpec, TmpfsMount } from '../../../../src/domain/spec/spec.ts'
import { StartError } from '../../../../src/worker/start-error.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import { makeFakeKubernetes, type FakeKubernetes, type TestDriver } from '../../../support/kubernetes-driver.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../../../support/spec.ts'
import { waitUntil } from '../../../support/wait.ts'
import { POD_SPEC } from '../kubernetes-conformance.ts'

// What of a specification is in the Pod.

const NEVER = new AbortController().signal
const OPTIONS = { readonly: false, noexec: false, nosuid: false, nodev: false }
const RUNTIME_CLASS = '/apis/node.k8s.io/v1/runtimeclasses/strong'
let fake: FakeKubernetes
let driver: TestDriver

before(async () => {
  fake = await makeFakeKubernetes()
  driver = await fake.open()
})
after(async () => {
  await driver.close()
  await fake.remove()
})
afterEach(() => {
  fake.cluster.answers.clear()
})

function tmpfs(guest: string, size_mib: number | null, options: Partial<TmpfsMount['options']> = {}): Mount {
  return { type: 'tmpfs', guest, size_mib, options: { ...OPTIONS, ...options } }
}

type PodParts = {
  readonly runtimeClassName?: string
  readonly containers: readonly { readonly name: string; readonly volumeMounts: readonly { readonly name: string }[] }[]
  readonly volumes: readonly { readonly name: string }[]
}

function partsOf(run: string): PodParts {
  const pod = fake.cluster.pods.get(`sandyard-${run}`)
  assert.ok(pod)
  return pod.spec as PodParts
}

test('each tmpfs is a volume in memory of its size, or of half of the memory', async () => {
  const run = makeDesiredRun({
    ...POD_SPEC,
    mounts: [tmpfs('/cache', 16), tmpfs('/scratch/', null, { readonly: true, nosuid: true, nodev: true })],
  })
  await driver.start(run, NEVER)
  const { containers, volumes } = partsOf(run.run_id)
  const inMemory = (sizeLimit: string): object => ({ medium: 'Memory', sizeLimit })
  assert.deepEqual(
    volumes.filter(({ name }) => name.startsWith('tmpfs')),
    [
      { name: 'tmpfs-0', emptyDir: inMemory('16Mi') },
      { name: 'tmpfs-1', emptyDir: inMemory('32Mi') },
    ],
  )
  assert.deepEqual(
    containers.find(({ name }) => name === 'sandbox')?.volumeMounts.filter(({ name }) => name.startsWith('tmpfs')),
    [
      { name: 'tmpfs-0', mountPath: '/cache', readOnly: false },
      { name: 'tmpfs-1', mountPath: '/scratch/', readOnly: true },
    ],
  )
  await driver.remove(run.run_id)
})

test('a tmpfs that a Pod can not have is refused by its field', async () => {
  const refused = async (mount: Mount, pattern: RegExp): Promise<void> => {
    const run = makeDesiredRun({ ...POD_SPEC, mounts: [mount] })
    await assert.rejects(
      driver.start(run, NEVER),
      (error) => error instanceof StartError && error.reason === 'config' && pattern.test(error.message),
    )
    await driver.remove(run.run_id)
  }
  await refused(tmpfs('/cache', 16, { noexec: true }), /mounts\[0\]\.noexec/)
  await refused(tmpfs('/a/../.msb/tools', 16), /mounts\[0\]\.guest/)
  await refused(tmpfs('/', 16), /mounts\[0\]\.guest/)
})

test('all Pods have the RuntimeClass of the worker, whose handler is their isolation level', async () => {
  for (const [handler, level] of [
    ['runsc', 'gvisor'],
    ['kata-qemu', 'microvm'],
    ['other', 'container'],
  ] as const) {
    fake.cluster.answers.set(RUNTIME_CLASS, { handler })
    const strong = await fake.open({ dir: `${fake.folder}/${handler}`, runtimeClass: 'strong' })
    const { report } = await strong.probe()
    assert.equal(report.abilities.includes('isolation_gvisor'), level !== 'container')
    assert.equal(report.abilities.includes('isolation_microvm'), level === 'microvm')
    const run = makeDesiredRun(POD_SPEC)
    await strong.start(run, NEVER)
    assert.equal(partsOf(run.run_id).runtimeClassName, 'strong')
    assert.equal((await strong.list())[0]?.facts?.['isolation_level'], level)
    await strong.remove(run.run_id)
    await strong.close()
  }
})

test('a worker does not start with a RuntimeClass that it can not read', async () => {
  const open = () => fake.open({ dir: `${fake.folder}/none`, runtimeClass: 'strong' })
  fake.cluster.answers.set(RUNTIME_CLASS, 404)
  await assert.rejects(open, /has no RuntimeClass strong/)
  fake.cluster.answers.set(RUNTIME_CLASS, 403)
  await assert.rejects(open, /may not read the RuntimeClass strong/)
})

test('limits hold for commands and workloads, and what the sandbox can not have ends its start by name', async () => {
  const { runtime } = DEFAULT_SPEC_FOR_TESTS
  const rlimits = [{ resource: 'nofile', soft: 64, hard: 128 }] as const
  const workload = { ...runtime, entrypoint: [], cmd: ['sh', '-c', 'test $(ulimit -Hn) = 128 && exit 9'] }
  const run = makeDesiredRun({ ...POD_SPEC, rlimits, runtime: workload })
  await driver.start(run, NEVER)
  await waitUntil(async () => (await driver.list())[0]?.phase === 'ended')
  assert.deepEqual((await driver.list())[0]?.outcome, { kind: 'exited', code: 9 })
  await driver.remove(run.run_id)
  const refused = async (spec: Partial<SandboxSpec>, pattern: RegExp): Promise<void> => {
    const one = makeDesiredRun({ ...POD_SPEC, ...spec })
    await assert.rejects(
      driver.start(one, NEVER),
      (error) => error instanceof StartError && error.reason === 'config' && pattern.test(error.message),
    )
    await driver.remove(one.run_id)
  }
  await refused({ rlimits: [{ resource: 'nofile', soft: 1, hard: 2 ** 40 }] }, /rlimits: nofile=1:1099511627776/)
  await refused({ rlimits, runtime: { ...runtime, entrypoint: null, cmd: ['true'] } }, /also need runtime\.entrypoint/)
  await refused({ env: [{ key: 'SANDYARD_RLIMITS', value: '' }] }, /env 'SANDYARD_RLIMITS'/)
})
