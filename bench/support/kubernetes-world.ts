/**
 * Measures sandboxes of the driver `kubernetes` and bare Pods on a real cluster, in turn. Prints the samples as JSON.
 * `bench/kubernetes.ts` starts it in the network of a cluster.
 */
import { join } from 'node:path'
import { makeApiClient } from '../../src/worker/kubernetes/api-client.ts'
import { makeDesiredRun } from '../../test/support/desired-run.ts'
import { openKubernetesDriver } from '../../test/support/kubernetes-driver.ts'
import { HELPER_IMAGE, makeRealNamespace } from '../../test/support/real-kubernetes.ts'
import { POD_SPEC } from '../../test/worker/drivers/kubernetes-conformance.ts'
import { deleteBarePod, startBarePod } from './bare-pod.ts'
import { countRequests } from './counting-client.ts'

/** What was measured. `requests` are those of one life, by kind. */
export type ClusterSamples = {
  readonly barePodMs: readonly number[]
  readonly sandboxMs: readonly number[]
  readonly burst: number
  readonly barePodsPerSec: readonly number[]
  readonly sandboxesPerSec: readonly number[]
  readonly requests: Readonly<Record<string, number>>
}

const NEVER = new AbortController().signal
const IMAGE = 'localhost/box:1'
const BURST = 6
/** So many processors a Pod of a burst has: all of them must fit on a node with two. */
const BURST_VCPUS = 0.3
const isQuick = process.argv[2] === 'quick'
const [SAMPLES, BURSTS] = isQuick ? [5, 1] : [12, 2]

const namespace = await makeRealNamespace('bench')
const counts = new Map<string, number>()
const bare = { client: makeApiClient(namespace.access), namespace: namespace.access.namespace, image: IMAGE }
const driver = await openKubernetesDriver({
  dir: join(namespace.folder, 'driver'),
  access: namespace.access,
  helperImage: HELPER_IMAGE,
  client: countRequests(makeApiClient(namespace.access), counts),
})

const startSandbox = async (vcpus: number) => {
  const desired = makeDesiredRun({ ...POD_SPEC, resources: { memory_mib: 64, vcpus, disk_size_mib: null } })
  await driver.start(desired, NEVER)
  const guest = await driver.guestOf(desired.run_id)
  const command = await guest.exec({ cmd: 'true', args: [], env: [], cwd: null, user: null, tty: null, rlimits: [] })
  if ((await command.exited) !== 0) throw new Error('the first command failed')
  return desired.run_id
}
let made = 0
const startPod = async (vcpus: number): Promise<string> => {
  made += 1
  const name = `bare-${String(made)}`
  await startBarePod({ ...bare, name, vcpus })
  return name
}
const timed = async <Made>(work: () => Promise<Made>): Promise<{ readonly value: Made; readonly ms: number }> => {
  const fromMs = performance.now()
  const value = await work()
  return { value, ms: performance.now() - fromMs }
}
const removePod = (name: string): Promise<void> => deleteBarePod({ ...bare, name })

const barePodMs: number[] = []
const sandboxMs: number[] = []
for (let sample = -1; sample < SAMPLES; sample++) {
  const pod = await timed(() => startPod(1))
  await removePod(pod.value)
  if (sample === 0) counts.clear() // the first life also loads code
  const sandbox = await timed(() => startSandbox(1))
  await driver.remove(sandbox.value)
  if (sample < 0) continue
  barePodMs.push(pod.ms)
  sandboxMs.push(sandbox.ms)
}
const requests = Object.fromEntries([...counts].map(([kind, count]) => [kind, count / SAMPLES]))

const barePodsPerSec: number[] = []
const sandboxesPerSec: number[] = []
const atOnce = <Made>(start: (vcpus: number) => Promise<Made>) =>
  Promise.all(Array.from({ length: BURST }, () => start(BURST_VCPUS)))
for (let round = 0; round < BURSTS; round++) {
  const pods = await timed(() => atOnce(startPod))
  barePodsPerSec.push((BURST * 1_000) / pods.ms)
  await Promise.all(pods.value.map(removePod))
  const sandboxes = await timed(() => atOnce(startSandbox))
  sandboxesPerSec.push((BURST * 1_000) / sandboxes.ms)
  await Promise.all(sandboxes.value.map((run) => driver.remove(run)))
}
await driver.close()
bare.client.close()
await namespace.remove()
const samples: ClusterSamples = { barePodMs, sandboxMs, burst: BURST, barePodsPerSec, sandboxesPerSec, requests }
process.stdout.write(`${JSON.stringify(samples)}\n`)
