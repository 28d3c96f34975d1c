/**
 * Measures sandboxes of the driver `kubernetes` and bare Pods on a real cluster, in turn. Prints the samples as JSON.
 * `bench/kubernetes.ts` starts it in the network of a cluster.
 */
import { join } from 'node:path'
import { makeApiClient } from '../../src/worker/kubernetes/api-client.ts'
import { makeDesiredRun } from '../../test/support/desired-run.ts'
import { openKubernetesDriver, type TestDriver } from '../../test/support/kubernetes-driver.ts'
import { HELPER_IMAGE, makeRealNamespace } from '../../test/support/real-kubernetes.ts'
import { serveOnNode } from '../../test/support/served-images.ts'
import { waitUntil } from '../../test/support/wait.ts'
import { POD_SPEC } from '../../test/worker/drivers/kubernetes-conformance.ts'
import { deleteBarePod, startBarePod } from './bare-pod.ts'
import { countRequests } from './counting-client.ts'

/** What was measured. `requests` are those of one life, by kind; `warmRequests` include those that make the warm Pod. */
export type ClusterSamples = {
  readonly barePodMs: readonly number[]
  readonly volumePodMs: readonly number[]
  readonly sandboxMs: readonly number[]
  /** The same with an image that the worker serves, and in a bare Pod of that image. */
  readonly servedMs: readonly number[]
  readonly bareServedMs: readonly number[]
  readonly warmMs: readonly number[]
  readonly burst: number
  readonly barePodsPerSec: readonly number[]
  readonly sandboxesPerSec: readonly number[]
  readonly servedPerSec: readonly number[]
  readonly requests: Readonly<Record<string, number>>
  readonly servedRequests: Readonly<Record<string, number>>
  readonly warmRequests: Readonly<Record<string, number>>
}

const NEVER = new AbortController().signal
const IMAGE = 'localhost/box:1'
const BURST = 6
/** So many processors a Pod of a burst has: all of them must fit on a node with two. */
const BURST_VCPUS = 0.3
const WARM_LIMIT_MS = 60_000
const isQuick = process.argv[2] === 'quick'
const [SAMPLES, BURSTS] = isQuick ? [4, 1] : [8, 2]

const namespace = await makeRealNamespace('bench')
const counts = new Map<string, number>()
const bare = { client: makeApiClient(namespace.access), namespace: namespace.access.namespace, image: IMAGE }
const warmCounts = new Map<string, number>()
const registry = await serveOnNode(namespace.folder)
const servedCounts = new Map<string, number>()
const open = (
  name: string,
  into: Map<string, number>,
  more: Partial<Parameters<typeof openKubernetesDriver>[0]> = {},
): Promise<TestDriver> =>
  openKubernetesDriver({
    dir: join(namespace.folder, name),
    access: namespace.access,
    helperImage: HELPER_IMAGE,
    client: countRequests(makeApiClient(namespace.access), into),
    ...more,
  })
const plain = await open('plain', counts)
const served = await open('served', servedCounts, { images: registry.served })
const warm = await open('warm', warmCounts, { warm: 1 })
const { image: servedImage } = (await registry.served.resolve(makeDesiredRun(POD_SPEC))).spec

const startSandbox = async (driver: TestDriver, vcpus: number) => {
  const desired = makeDesiredRun({ ...POD_SPEC, resources: { memory_mib: 64, vcpus, disk_size_mib: null } })
  await driver.start(desired, NEVER)
  const guest = await driver.guestOf(desired.run_id)
  const command = await guest.exec({ cmd: 'true', args: [], env: [], cwd: null, user: null, tty: null, rlimits: [] })
  if ((await command.exited) !== 0) throw new Error('the first command failed')
  return desired.run_id
}
let made = 0
const startPod = async (
  vcpus: number,
  { hasVolume = false, image = IMAGE }: { readonly hasVolume?: boolean; readonly image?: string } = {},
): Promise<string> => {
  made += 1
  const name = `bare-${String(made)}`
  await startBarePod({ ...bare, image, name, vcpus, hasVolume })
  return name
}
const timed = async <Made>(work: () => Promise<Made>): Promise<{ readonly value: Made; readonly ms: number }> => {
  const fromMs = performance.now()
  const value = await work()
  return { value, ms: performance.now() - fromMs }
}
const removePod = (name: string): Promise<void> => deleteBarePod({ ...bare, name })

const barePodMs: number[] = []
const volumePodMs: number[] = []
const sandboxMs: number[] = []
const warmMs: number[] = []
const servedMs: number[] = []
const bareServedMs: number[] = []
for (let sample = -1; sample < SAMPLES; sample++) {
  const pod = await timed(() => startPod(1))
  await removePod(pod.value)
  const volumePod = await timed(() => startPod(1, { hasVolume: true }))
  await removePod(volumePod.value)
  if (sample === 0) counts.clear() // the first life also loads code
  const sandbox = await timed(() => startSandbox(plain, 1))
  await plain.remove(sandbox.value)
  if (sample === 0) servedCounts.clear() // the first life also pulls the image
  const ofServed = await timed(() => startSandbox(served, 1))
  await served.remove(ofServed.value)
  const bareServed = await timed(() => startPod(1, { image: servedImage }))
  await removePod(bareServed.value)
  if (sample === 0) warmCounts.clear()
  const ready = await timed(() => startSandbox(warm, 1))
  await warm.remove(ready.value)
  await waitUntil(() => warm.pools?.()[0]?.ready === 1, WARM_LIMIT_MS)
  if (sample < 0) continue
  warmMs.push(ready.ms)
  barePodMs.push(pod.ms)
  volumePodMs.push(volumePod.ms)
  sandboxMs.push(sandbox.ms)
  servedMs.push(ofServed.ms)
  bareServedMs.push(bareServed.ms)
}
if (warm.warmStarts?.().hit !== SAMPLES) throw new Error('a start found no warm Pod')
await warm.close()
const requestsOf = (of: ReadonlyMap<string, number>) =>
  Object.fromEntries([...of].map(([kind, count]) => [kind, count / SAMPLES]))
const [requests, servedRequests, warmRequests] = [counts, servedCounts, warmCounts].map(requestsOf) as [
  ClusterSamples['requests'],
  ClusterSamples['requests'],
  ClusterSamples['requests'],
]

const barePodsPerSec: number[] = []
const sandboxesPerSec: number[] = []
const servedPerSec: number[] = []
const atOnce = <Made>(start: (vcpus: number) => Promise<Made>) =>
  Promise.all(Array.from({ length: BURST }, () => start(BURST_VCPUS)))
for (let round = 0; round < BURSTS; round++) {
  const pods = await timed(() => atOnce((vcpus) => startPod(vcpus)))
  barePodsPerSec.push((BURST * 1_000) / pods.ms)
  await Promise.all(pods.value.map(removePod))
  for (const [driver, perSec] of [
    [plain, sandboxesPerSec],
    [served, servedPerSec],
  ] as const) {
    const sandboxes = await timed(() => atOnce((vcpus) => startSandbox(driver, vcpus)))
    perSec.push((BURST * 1_000) / sandboxes.ms)
    await Promise.all(sandboxes.value.map((run) => driver.remove(run)))
  }
}
await plain.close()
await served.close()
await registry.close()
bare.client.close()
await namespace.remove()
const samples: ClusterSamples = {
  barePodMs,
  volumePodMs,
  sandboxMs,
  servedMs,
  bareServedMs,
  warmMs,
  burst: BURST,
  barePodsPerSec,
  sandboxesPerSec,
  servedPerSec,
  requests,
  servedRequests,
  warmRequests,
}
process.stdout.write(`${JSON.stringify(samples)}\n`)
