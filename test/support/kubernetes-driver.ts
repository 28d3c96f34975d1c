import { mkdir, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { duplexPair } from 'node:stream'
import type { RunId } from '../../src/domain/ids.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { makePiecePacer } from '../../src/lib/turns/piece-pacer.ts'
import { makeLog } from '../../src/lib/log.ts'
import { systemRandom } from '../../src/lib/random.ts'
import { DEFAULT_CHANNEL_LIMITS } from '../../src/worker/channel/channel.ts'
import { serveChannel } from '../../src/worker/channel/serve-channel.ts'
import type { Guest } from '../../src/worker/channel/guest.ts'
import { makeSessionPermits } from '../../src/worker/channel/session-permits.ts'
import type { Driver } from '../../src/worker/drivers/driver.ts'
import { makeKubernetesDriver } from '../../src/worker/drivers/kubernetes/driver.ts'
import type { ClaimSettings } from '../../src/worker/drivers/kubernetes/claim.ts'
import type { NamespaceMode } from '../../src/worker/drivers/kubernetes/namespaces/namespaces.ts'
import type { NetworkMode } from '../../src/worker/drivers/kubernetes/network-mode.ts'
import type { CanaryLimits } from '../../src/worker/drivers/kubernetes/network/canary-pods.ts'
import type { ServedImages } from '../../src/worker/drivers/kubernetes/served-images.ts'
import { collectFiles, makeToolbox } from '../../src/worker/drivers/oci/rootfs/toolbox.ts'
import { DEFAULT_OCI_SETTINGS } from '../../src/worker/drivers/oci/context.ts'
import { makeApiClient, type ApiClient } from '../../src/worker/kubernetes/api-client.ts'
import type { ClusterAccess } from '../../src/worker/kubernetes/cluster-access.ts'
import { type SandboxLogs, makeNoLogs } from '../../src/worker/logs/logs.ts'
import type { SandboxMetrics } from '../../src/worker/metrics/sandbox-metrics.ts'
import { makeFakeKubelet } from './fake-kubelet.ts'
import { startFakeCluster, type FakeCluster } from './fake-kubernetes.ts'

type DriverOptions = {
  readonly dir: string
  readonly access: ClusterAccess
  readonly helperImage: string
  readonly runtimeClass?: string
  readonly namespaceMode?: NamespaceMode | 'auto'
  /** Default: `cluster`, so that no canary runs. */
  readonly network?: NetworkMode
  readonly canaryLimits?: CanaryLimits
  readonly logs?: Pick<SandboxLogs, 'writerOf'>
  readonly images?: ServedImages
  readonly tools?: string
  readonly startLimitMs?: number
  readonly usagePollMs?: number
  readonly warm?: number
  readonly claimSettings?: ClaimSettings
  readonly filesIdleMs?: number
  readonly filesStartLimitMs?: number
  readonly metrics?: Pick<SandboxMetrics, 'begin' | 'end'>
  /** The client of the API. Default: a plain one. The driver's close closes it. */
  readonly client?: ApiClient
}

/** The driver, and the guests behind its channels. */
export type TestDriver = Driver & { guestOf(run: RunId): Promise<Guest> }

/** Opens the driver over a cluster. Each call is a process of the worker. */
export async function openKubernetesDriver({
  access,
  logs = makeNoLogs(),
  client = makeApiClient(access),
  warm = 0,
  metrics = { begin: () => undefined, end: () => undefined },
  ...options
}: DriverOptions): Promise<TestDriver> {
  let latest: Guest | null = null
  const log = makeLog('silent')
  const driver = await makeKubernetesDriver({
    namespaceMode: 'shared',
    namespaceDays: 7,
    network: 'cluster',
    connectionBound: { connections: 4_096, newPerSecond: 205 },
    ownRanges: { addresses: () => [], rangesOf: () => [] },
    runtimeClass: null,
    claimSettings: null,
    images: null,
    ...options,
    client,
    warm,
    namespace: access.namespace,
    sessions: makeSessionPermits({ perSandbox: 64, perOrg: 64, total: 64 }),
    pacer: makePiecePacer(),
    logs,
    metrics,
    openGuestChannel: ({ guest }, use, capture) => {
      latest = guest
      const [near, far] = duplexPair()
      void serveChannel(far, guest, {
        clock: systemClock,
        log,
        limits: DEFAULT_CHANNEL_LIMITS,
        pace: makePiecePacer().paceOf('org'),
        agentVersion: 'test',
        onActivity: use.touch,
        onProcess: use.hold,
        capture,
      })
      return near
    },
    random: systemRandom,
    clock: systemClock,
    log,
  })
  return {
    ...driver,
    async guestOf(run) {
      const channel = await driver.openChannel(run)
      channel.destroy()
      if (latest === null) throw new Error('no channel was opened')
      return latest
    },
    async close() {
      await driver.close()
      client.close()
    },
  }
}

/** A cluster in this process with a folder for the records of a worker. */
export type FakeKubernetes = {
  readonly folder: string
  readonly cluster: FakeCluster
  open(options?: Partial<DriverOptions>): Promise<TestDriver>
  /** Closes the drivers that are still open, and ends the cluster. */
  remove(): Promise<void>
}

/** Makes a fake cluster that runs Pods as processes of this machine. */
export async function makeFakeKubernetes(): Promise<FakeKubernetes> {
  const folder = await mkdtemp(join(tmpdir(), 'sandyard-kube-'))
  const [certificates, tools, dir] = ['certificates', 'tools', 'driver'].map((name) => join(folder, name)) as [
    string,
    string,
    string,
  ]
  await mkdir(certificates)
  const toolbox = await makeToolbox(tools, await collectFiles(DEFAULT_OCI_SETTINGS.initBinary))
  const cluster = await startFakeCluster(certificates, makeFakeKubelet(toolbox, join(folder, 'volumes')))
  const opened: TestDriver[] = []
  return {
    folder,
    cluster,
    async open(options) {
      const driver = await openKubernetesDriver({
        dir,
        access: cluster.access,
        helperImage: 'localhost/sandyard-helper:1',
        tools: toolbox,
        ...options,
      })
      opened.push(driver)
      return driver
    },
    async remove() {
      for (const driver of opened) await driver.close()
      await cluster.close()
      await rm(folder, { recursive: true, force: true })
    },
  }
}
