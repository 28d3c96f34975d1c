import { join } from 'node:path'
import type { Config } from '../../config.ts'
import { systemClock } from '../../lib/clock.ts'
import { systemRandom } from '../../lib/random.ts'
import { makePiecePacer } from '../../lib/turns/piece-pacer.ts'
import { DEFAULT_CHANNEL_LIMITS } from '../../worker/channel/channel.ts'
import { openChannel } from '../../worker/channel/open-channel.ts'
import type { Driver } from '../../worker/drivers/driver.ts'
import type { ClaimSettings } from '../../worker/drivers/kubernetes/claim.ts'
import { makeKubernetesDriver } from '../../worker/drivers/kubernetes/driver.ts'
import { makeApiClient } from '../../worker/kubernetes/api-client.ts'
import { readClusterAccess } from '../../worker/kubernetes/cluster-access.ts'
import { connectionBound } from '../../worker/network/connection-bound.ts'
import { openOwnRanges } from './open-own-ranges.ts'
import { openSessionPermits } from './open-session-permits.ts'
import { openImageRegistry } from './open-image-registry.ts'
import { VERSION } from '../version.ts'
import type { DriverDeps } from './worker-storage.ts'

/** The folder of the driver's records. The worker's identity is beside it, so both live equally long. */
export function kubernetesFolder(config: Pick<Config, 'dataDir'>): string {
  return join(config.dataDir, 'kubernetes')
}

function claimSettingsOf({
  kubernetesVolumeClass: storageClass,
  kubernetesVolumeMode: mode,
  kubernetesVolumeGib: sizeGib,
}: Config): ClaimSettings | null {
  return storageClass === null ? null : { storageClass, mode, sizeGib }
}

/** How many warm Pods to keep if no setting says it. */
const DEFAULT_WARM_PODS = 8

/** Opens the driver for Pods. Rejects with words if a setting is missing or the cluster can't be used. */
export async function openKubernetesDriver(
  config: Config,
  { logs, metrics, log, deadlineFile }: DriverDeps,
): Promise<Driver> {
  const { kubernetesHelperImage: helperImage } = config
  if (deadlineFile !== null)
    throw new Error('the driver kubernetes runs its sandboxes without a deadline of this worker')
  if (helperImage === null)
    throw new Error(
      'SANDYARD_KUBERNETES_HELPER_IMAGE must name the helper image in a registry of the cluster; `sandyard image helper FILE` writes it',
    )
  const access = await readClusterAccess({
    kubeconfig: config.kubeconfig,
    env: { host: process.env['KUBERNETES_SERVICE_HOST'], port: process.env['KUBERNETES_SERVICE_PORT'] },
  })
  await using opened = new AsyncDisposableStack()
  const client = makeApiClient(access)
  opened.defer(() => {
    client.close()
  })
  const registry = await openImageRegistry(config, log)
  if (registry !== null) opened.defer(() => registry.close())
  const pacer = makePiecePacer()
  const driver = await makeKubernetesDriver({
    dir: kubernetesFolder(config),
    client,
    namespace: config.kubernetesNamespace ?? access.namespace,
    namespaceMode: config.kubernetesNamespaces,
    namespaceDays: config.kubernetesNamespaceDays,
    network: config.kubernetesNetwork,
    connectionBound: connectionBound(config.connectionsPerSandbox, null), // the tables of nodes are not known
    ownRanges: await openOwnRanges(config, log),
    helperImage,
    images: registry?.served ?? null,
    runtimeClass: config.kubernetesRuntimeClass,
    claimSettings: claimSettingsOf(config),
    warm: config.warm ?? DEFAULT_WARM_PODS,
    sessions: openSessionPermits(config, log),
    pacer,
    logs,
    metrics,
    openGuestChannel: ({ guest, org }, use, capture) =>
      openChannel(guest, {
        clock: systemClock,
        log,
        limits: DEFAULT_CHANNEL_LIMITS,
        pace: pacer.paceOf(org),
        agentVersion: `sandyard ${VERSION}`,
        onActivity: use.touch,
        onProcess: use.hold,
        capture,
      }),
    random: systemRandom,
    clock: systemClock,
    log,
  })
  opened.defer(() => driver.close())
  const parts = opened.move()
  return { ...driver, close: () => parts.disposeAsync() }
}
