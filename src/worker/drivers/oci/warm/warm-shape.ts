import type { DesiredRun } from '../../../../contract/workers/worker-protocol.ts'
import { NO_EGRESS_SECRETS } from '../../../../domain/network/interception.ts'
import type { NetworkSpec, SandboxSpec } from '../../../../domain/spec/spec.ts'
import { egressNeedsOf } from '../../../network/redirected-sandboxes.ts'
import { diskSizeMib, type DiskSizes } from '../../shared/desired-run.ts'

/** What all runs have in common that may take the same warm sandbox. */
export type WarmShape = {
  /** Two runs have the same shape if and only if they have the same key. */
  readonly key: string
  /** The size of the disk in MiB. */
  readonly diskMib: number
  /** A run of this shape, without what is applied when a run takes the warm sandbox. */
  readonly desired: Omit<DesiredRun, 'run_id' | 'sandbox_id'>
}

/**
 * Returns the shape of a run, or null if no warm sandbox can serve the run. The key has the whole spec except what
 * `startFromWarm` applies or a running container doesn't depend on. A field that a later version adds is therefore in the key.
 */
export function warmShapeOf(desired: DesiredRun, sizes: DiskSizes): WarmShape | null {
  const { spec, network_ranges } = desired
  if (!isSuited(desired)) return null
  const diskMib = diskSizeMib(desired, sizes)
  const common = commonSpec(spec, diskMib)
  return {
    key: JSON.stringify([common, network_ranges]),
    diskMib,
    desired: {
      ...desired,
      name: 'warm',
      slug: 'warm',
      spec: common,
      volumes: [],
      registry_auth: null,
      secrets: null,
      interception: null,
    },
  }
}

/**
 * Whether a warm sandbox can serve a run. Process 1 of a warm sandbox waits for commands, so the run has no command of its own.
 * Everything else that changes the container's mounts or its root, or that the egress process must judge, is also left to a
 * plain start.
 */
function isSuited({ spec, secrets, interception }: DesiredRun): boolean {
  return (
    spec.runtime.cmd === null &&
    spec.init === null &&
    spec.snapshot_id === undefined &&
    spec.mounts.length === 0 &&
    spec.patches.length === 0 &&
    (secrets ?? []).length === 0 &&
    (interception ?? null) === null &&
    isSimple(spec.network)
  )
}

function isSimple(network: NetworkSpec): boolean {
  return (
    network.secrets.length === 0 &&
    network.tls === undefined &&
    network.trust_host_cas !== true &&
    network.interface === undefined &&
    network.dns === undefined &&
    (network.ports ?? []).length === 0 &&
    egressNeedsOf(network, NO_EGRESS_SECRETS) === null
  )
}

/** The spec of a warm sandbox, with neutral values for what each run has of its own. */
function commonSpec(spec: SandboxSpec, diskMib: number): SandboxSpec {
  return {
    ...spec,
    pull_policy: 'never',
    labels: {},
    lifecycle: { ephemeral: false, idle_timeout_secs: null, max_duration_secs: null },
    resources: { ...spec.resources, vcpus: 1, disk_size_mib: diskMib },
    runtime: {
      ...spec.runtime,
      hostname: null,
      log_level: null,
      metrics_sample_interval_ms: null,
      disable_metrics_sample: true,
      scripts: {},
      shell: null,
    },
  }
}
