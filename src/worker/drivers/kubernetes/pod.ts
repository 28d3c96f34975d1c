import type { OrgId } from '../../../domain/ids.ts'
import type { ApiObject } from '../../kubernetes/object-watch.ts'

/** The parts of a Pod that the driver reads. */
export type Pod = ApiObject & {
  readonly metadata: ApiObject['metadata'] & {
    readonly namespace: string
    readonly labels?: Readonly<Record<string, string>>
    readonly deletionTimestamp?: string
  }
  readonly spec?: {
    readonly nodeName?: string
    readonly imagePullSecrets?: readonly { readonly name: string }[]
    readonly containers?: readonly {
      readonly resources?: { readonly requests?: Readonly<Record<string, string>> }
    }[]
  }
  readonly status?: {
    readonly phase?: 'Pending' | 'Running' | 'Succeeded' | 'Failed' | 'Unknown'
    readonly reason?: string
    readonly message?: string
    readonly podIPs?: readonly { readonly ip: string }[]
    readonly conditions?: readonly PodCondition[]
    readonly containerStatuses?: readonly ContainerStatus[]
    readonly initContainerStatuses?: readonly ContainerStatus[]
  }
}
type PodCondition = {
  readonly type: string
  readonly status: string
  readonly reason?: string
  readonly message?: string
}
export type ContainerStatus = {
  readonly name: string
  readonly imageID?: string
  readonly state?: {
    readonly waiting?: { readonly reason?: string; readonly message?: string }
    readonly running?: object
    readonly terminated?: Terminated
  }
}
/** How the kubelet says that a container ended. */
export type Terminated = { readonly exitCode: number; readonly reason?: string; readonly message?: string }

/** The container of a Pod in which the sandbox runs. */
export const SANDBOX_CONTAINER = 'sandbox'

/** All labels of the driver have this prefix. Labels of users are not put on Pods. */
const PREFIX = 'sandyard.dev/'
export const LABELS = {
  owner: `${PREFIX}owner`,
  run: `${PREFIX}run`,
  org: `${PREFIX}organization`,
  sandbox: `${PREFIX}sandbox`,
  volume: `${PREFIX}volume`,
  /** The policy of a Pod's network. Without it, the cluster decides. */
  network: `${PREFIX}network`,
  canary: `${PREFIX}canary`,
  canaryPart: `${PREFIX}canary-part`,
  /** The volume whose files a Pod serves. */
  files: `${PREFIX}volume-files`,
} as const

/** A Pod by its names. */
export type PodName = { readonly namespace: string; readonly name: string }
/** A Pod with the organization that it is for. */
export type OrgPod = PodName & { readonly org_id: OrgId }

/** The name of a run's Pod. The API server refuses a second Pod of the name, so no run is started twice. */
export function podNameOf(run: string): string {
  return `sandyard-${run}`
}

/** The state of the container with the sandbox. */
export function sandboxStatus(pod: Pod): ContainerStatus | undefined {
  return containerStatus(pod, SANDBOX_CONTAINER)
}

/** The state of a container of a Pod. */
export function containerStatus({ status }: Pod, container: string): ContainerStatus | undefined {
  return status?.containerStatuses?.find(({ name }) => name === container)
}

/** Says what a Pod waits for, as the scheduler and the kubelet reported it. */
export function describeWaiting(pod: Pod | undefined, container: string): string {
  if (pod === undefined) return UNKNOWN
  const waiting = containerStatus(pod, container)?.state?.waiting
  return schedulingFailure(pod) ?? waiting?.message ?? waiting?.reason ?? UNKNOWN
}

const UNKNOWN = 'the cluster does not say why'
/** A scheduler's message has a part for each reason that a node was ruled out. */
const MESSAGE_LIMIT = 500

/**
 * Why the scheduler finds no node for a Pod, as it says itself: how many nodes lack what. Null if it doesn't say so. The owner of the sandbox
 * reads it, so the names of taints, which may be those of other tenants, are left out.
 */
export function schedulingFailure({ status }: Pod): string | null {
  const condition = status?.conditions?.find(({ type, status: is }) => type === 'PodScheduled' && is === 'False')
  const message = condition?.message?.replaceAll(/\s*\{[^}]*\}?/g, '').slice(0, MESSAGE_LIMIT)
  return message === undefined || message === '' ? null : message
}

/** Whether the kubelet said that the Pod is over: none of its containers runs, or will again. */
export function isOver({ status }: Pod): boolean {
  return status?.phase === 'Succeeded' || status?.phase === 'Failed'
}

/** Whether a Pod that was used once still can be, as far as the cluster says: it is not over, and nobody deletes it. */
export function isUsable(pod: Pod | undefined): boolean {
  return pod !== undefined && pod.metadata.deletionTimestamp === undefined && !isOver(pod)
}

/** Whether the scheduler said that no node has enough for a Pod. */
export function isUnschedulable({ status }: Pod): boolean {
  return (
    status?.conditions?.some(({ type, status: is }) => type === 'PodScheduled' && is === 'False') === true &&
    status.phase === 'Pending'
  )
}
