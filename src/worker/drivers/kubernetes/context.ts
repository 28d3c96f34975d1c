import type { Duplex } from 'node:stream'
import type { OrgId } from '../../../domain/ids.ts'
import type { IsolationLevel } from '../../../domain/isolation.ts'
import type { Clock } from '../../../lib/clock.ts'
import type { Log } from '../../../lib/log.ts'
import type { Random } from '../../../lib/random.ts'
import type { PiecePacer } from '../../../lib/turns/piece-pacer.ts'
import type { Guest } from '../../channel/guest.ts'
import type { SessionPermits } from '../../channel/session-permits.ts'
import type { ApiClient } from '../../kubernetes/api-client.ts'
import type { LogWriter, SandboxLogs } from '../../logs/logs.ts'
import type { SandboxMetrics } from '../../metrics/sandbox-metrics.ts'
import type { RunUsage } from '../shared/run-activity.ts'
import type { RunRecord, RunRecords } from '../shared/run-records.ts'
import type { AgentLinks } from './link/agent-links.ts'
import type { ClaimSettings } from './claim.ts'
import type { Claims } from './claims/claims.ts'
import type { NamespaceMode, SandboxNamespaces } from './namespaces/namespaces.ts'
import type { CanaryLimits } from './network/canary-pods.ts'
import type { ConnectionBound } from '../../network/connection-bound.ts'
import type { OwnRanges } from '../../network/rules/own-ranges.ts'
import type { NetworkMode } from './network-mode.ts'
import type { NetworkProof } from './network/network-proof.ts'
import type { Policies } from './network/policies.ts'
import type { PodLogs } from './pod-logs.ts'
import type { PodSettings } from './spec/pod-spec.ts'
import type { PodUsage } from './usage/pod-usage.ts'
import type { Pods } from './pods.ts'
import type { ServedImages } from './served-images.ts'
import type { StartPace } from './link/start-pace.ts'
import type { WarmPods } from './warm/warm-pods.ts'

/** The record of a run of this driver. */
export type PodRunRecord = RunRecord<StartedPod> & {
  /** The namespace of its Pod. */
  readonly namespace: string
  /** The name of its Pod if it is another than that of the run: the run took a warm Pod. */
  readonly pod_name?: string
  readonly idle_timeout_secs: number | null
  readonly has_workload: boolean
  /** Whether the Pod has an image pull Secret. Absent in records of an earlier version. */
  readonly has_pull_secret?: boolean
}

/** The part of a record that is set once the sandbox accepted commands. */
export type StartedPod = { readonly pod_uid: string }

export type KubernetesDriverInput = {
  /** The driver's folder: records, which outlive the worker's process. */
  readonly dir: string
  readonly client: ApiClient
  /** The namespace of all Pods, or the one whose name begins those of organizations. */
  readonly namespace: string
  /** Who shares a namespace. `auto`: nobody, if the worker has the rights to make namespaces. */
  readonly namespaceMode: NamespaceMode | 'auto'
  /** After how many days without a sandbox an organization's namespace is deleted. 0: never. */
  readonly namespaceDays: number
  readonly network: NetworkMode
  /** How many connections a sandbox with packet rules may have at most. */
  readonly connectionBound: ConnectionBound
  /** The addresses that this worker denies to its sandboxes. */
  readonly ownRanges: OwnRanges
  readonly helperImage: string
  /** The images that were loaded into this worker. Null: the cluster pulls all images. */
  readonly images: ServedImages | null
  /** The RuntimeClass of all Pods. Null: the default runtime of the nodes. */
  readonly runtimeClass: string | null
  /** The claims that volumes become. Null: the driver mounts no volumes. */
  readonly claimSettings: ClaimSettings | null
  /** How many warm Pods the driver keeps at most. */
  readonly warm: number
  readonly sessions: SessionPermits
  readonly pacer: PiecePacer
  readonly logs: Pick<SandboxLogs, 'writerOf'>
  readonly metrics: Pick<SandboxMetrics, 'begin' | 'end'>
  /** Serves the agent protocol to one client of a guest, which is a sandbox of `org`. */
  readonly openGuestChannel: (
    of: { readonly guest: Guest; readonly org: OrgId },
    use: RunUsage,
    capture: Pick<LogWriter, 'stream'>,
  ) => Duplex
  readonly random: Random
  readonly clock: Clock
  readonly log: Log
  /** The folder of the toolbox in sandboxes. Default: `TOOLS_FOLDER`. */
  readonly tools?: string
  /** How long a Pod may take to accept commands. Default: `START_LIMIT_MS`. */
  readonly startLimitMs?: number
  /** Default: `CANARY_LIMITS`. */
  readonly canaryLimits?: CanaryLimits
  /** How long a Pod that serves files stays after the last request, and may take to be ready. Defaults: those of `makeFilesPods`. */
  readonly filesIdleMs?: number
  readonly filesStartLimitMs?: number
  /** The pause between two looks at what Pods use. Default: the one of `makePodUsage`. */
  readonly usagePollMs?: number
}

/** What the parts of the driver share. */
export type PodContext = KubernetesDriverInput & {
  readonly settings: PodSettings
  readonly records: RunRecords<PodRunRecord>
  readonly namespaces: SandboxNamespaces
  /** Null: the cluster decides what sandboxes reach. */
  readonly proof: Pick<NetworkProof, 'isProved'> | null
  /** Null: no Pod has a policy of its own. */
  readonly policies: Pick<Policies, 'ensure' | 'forget'> | null
  readonly pods: Pods
  /** Null: the driver mounts no volumes. */
  readonly claims: Pick<Claims, 'prepare' | 'filesForStart'> | null
  readonly links: AgentLinks
  readonly pace: StartPace
  readonly podLogs: PodLogs
  readonly usage: PodUsage
  readonly warmPods: WarmPods
  readonly isolation: string
  readonly level: IsolationLevel
}
