import type { Clock } from '../../../../lib/clock.ts'
import type { Log } from '../../../../lib/log.ts'
import type { ApiClient } from '../../../kubernetes/api-client.ts'
import { isApiError } from '../../../kubernetes/api-error.ts'
import { execInPod, type ExecStatus, type ExecTarget } from '../../../kubernetes/exec-stream.ts'
import { persistRequest } from '../../../kubernetes/persist-request.ts'
import { policiesPath } from '../namespaces/base-policies.ts'
import { LABELS, type Pod } from '../pod.ts'
import { rulesStatus } from './rules-container.ts'
import {
  CANARY_CONTAINER,
  CANARY_PARTS,
  CANARY_PORT,
  canaryPolicyName,
  CLOSED_CODE,
  makeCanaryPod,
  reachCommand,
  type CanaryPart,
  type CanaryPlace,
} from './canary-objects.ts'

export type CanaryDeps = CanaryPlace & {
  readonly client: Pick<ApiClient, 'request' | 'openSocket'>
  readonly helperImage: string
  readonly runtimeClass: string | null
  /** Makes the end of the names of the Pods, another one each time. */
  readonly newSuffix: () => string
  readonly limits: CanaryLimits
  readonly clock: Clock
  readonly log: Log
}

/** How long the steps of a canary may take, in milliseconds. */
export type CanaryLimits = {
  /** Until both Pods run. The helper image may have to be pulled. */
  readonly startMs: number
  /** Until a changed policy holds. */
  readonly changeMs: number
  readonly connectMs: number
  /** The pause between two looks at a Pod or a connection. */
  readonly lookMs: number
}

export const CANARY_LIMITS: CanaryLimits = { startMs: 120_000, changeMs: 15_000, connectMs: 1_000, lookMs: 200 }
/** How long a command of the API may take beyond the connection that it tries. */
export const EXEC_MS = 10_000
const IMAGE_REASONS = ['ErrImagePull', 'ImagePullBackOff', 'InvalidImageName', 'ErrImageNeverPull']

/** Why a canary could not be completed. The message is for people. */
export class CanaryFailure extends Error {}

/** A Pod of a canary that runs. */
export type CanaryTarget = { readonly pod: string; readonly address: string }

/** Starts both Pods, the client with rules if some are given, and resolves once both run. */
export async function startPods(
  deps: CanaryDeps,
  signal: AbortSignal,
  rules: readonly string[] | null = null,
): Promise<Readonly<Record<CanaryPart, CanaryTarget>>> {
  const { client, namespace, helperImage: image, runtimeClass, clock, limits } = deps
  const { startMs, lookMs } = limits
  const path = `/api/v1/namespaces/${namespace}/pods`
  const suffix = deps.newSuffix()
  const nameOf = (part: CanaryPart): string => `sandyard-canary-${part}-${suffix}`
  for (const part of CANARY_PARTS) {
    const own = part === 'client' ? rules : null
    const pod = makeCanaryPod(deps, part, { name: nameOf(part), image, runtimeClass, rules: own })
    await persistRequest(() => client.request('POST', path, pod, { signal }), { ...deps, signal }).catch(
      (error: unknown) => {
        if (!isApiError(error, 409)) throw error // the answer to an earlier request was lost
      },
    )
  }
  const read = (part: CanaryPart): Promise<Pod> =>
    persistRequest(() => client.request<Pod>('GET', `${path}/${nameOf(part)}`, undefined, { signal }), {
      ...deps,
      signal,
    })
  const startedMs = clock.monotonicMs()
  for (;;) {
    const [server, other] = await Promise.all([read('server'), read('client')])
    const [ofServer, ofOther] = [addressOf(server), addressOf(other)]
    if (ofServer !== undefined && ofOther !== undefined)
      return {
        server: { pod: nameOf('server'), address: ofServer },
        client: { pod: nameOf('client'), address: ofOther },
      }
    if (clock.monotonicMs() - startedMs > startMs)
      throw new CanaryFailure(
        `its Pods did not run with IPv4 addresses within ${String(startMs / 1_000)} s: ${describe(server)}, ${describe(other)}`,
      )
    await clock.sleep(lookMs, signal)
  }
}

/** The IPv4 address of a Pod that runs. Throws if it never will. */
function addressOf(pod: Pod): string | undefined {
  const { status } = pod
  const loaded = rulesStatus(pod)?.state
  if (loaded?.terminated !== undefined && loaded.terminated.exitCode !== 0)
    throw new CanaryFailure(
      `its rules could not be loaded: ${loaded.terminated.message ?? loaded.terminated.reason ?? 'the cluster does not say why'}`,
    )
  const { waiting, terminated } = status?.containerStatuses?.[0]?.state ?? {}
  for (const one of [loaded?.waiting, waiting])
    if (one?.reason !== undefined && IMAGE_REASONS.includes(one.reason))
      throw new CanaryFailure(`the cluster can't pull the helper image: ${one.message ?? one.reason}`)
  if (terminated !== undefined || status?.phase === 'Failed' || status?.phase === 'Succeeded')
    throw new CanaryFailure(
      `a Pod of it ended: ${terminated?.message ?? terminated?.reason ?? status?.message ?? status?.reason ?? 'the cluster does not say why'}. The helper image must be the one of this release`,
    )
  return status?.phase === 'Running' ? status.podIPs?.find(({ ip }) => ip.includes('.'))?.ip : undefined
}

function describe(pod: Pod): string {
  const scheduled = pod.status?.conditions?.find(({ type, status }) => type === 'PodScheduled' && status === 'False')
  const waiting = pod.status?.containerStatuses?.[0]?.state?.waiting
  return scheduled?.message ?? waiting?.message ?? waiting?.reason ?? pod.status?.phase ?? 'unknown'
}

type Reaching = {
  /** The name of the Pod that connects. */
  readonly pod: string
  readonly address: string
  readonly port?: number
}

/** Tries one connection from Pod to Pod. Tries again if the command's own stream breaks. */
export async function reach(
  deps: CanaryDeps,
  { pod, address, port = CANARY_PORT }: Reaching,
  signal: AbortSignal,
): Promise<'reached' | 'closed'> {
  const { connectMs, lookMs } = deps.limits
  const command = reachCommand(address, port, connectMs / 1_000)
  for (;;) {
    const limit = AbortSignal.any([signal, AbortSignal.timeout(connectMs + EXEC_MS)])
    const status = await persistRequest(
      () => runToEnd(deps.client, { namespace: deps.namespace, pod, container: CANARY_CONTAINER, command }, limit),
      { ...deps, signal },
    )
    if (status.kind === 'exited' && status.code === 0) return 'reached'
    if (status.kind === 'exited' && status.code === CLOSED_CODE) return 'closed'
    if (status.kind === 'exited')
      throw new CanaryFailure(
        `its command ended with ${String(status.code)}: the helper image must be the one of this release`,
      )
    deps.log.warn({ seen: status.message }, 'a command of the canary failed; trying again')
    await deps.clock.sleep(lookMs, signal)
  }
}

/** Runs a command in a Pod, and resolves with its end. A stream that lasts longer than the signal has `failed`. */
async function runToEnd(client: CanaryDeps['client'], target: ExecTarget, signal: AbortSignal): Promise<ExecStatus> {
  const { stream, ended } = await execInPod(client, target, signal)
  const abort = (): void => void stream.destroy()
  signal.addEventListener('abort', abort, { once: true })
  stream.on('error', () => undefined) // `ended` says it
  stream.end()
  stream.resume()
  const status = await ended
  signal.removeEventListener('abort', abort)
  return status
}

/** Deletes the Pods and policies of this worker's canaries, also those that an earlier process left. */
export async function removeCanaries(deps: CanaryDeps, signal: AbortSignal): Promise<void> {
  const { client, owner, namespace } = deps
  const pods = `/api/v1/namespaces/${namespace}/pods`
  const persist = <Answer>(ask: () => Promise<Answer>): Promise<Answer> => persistRequest(ask, { ...deps, signal })
  const remove = async (path: string, options: object): Promise<void> => {
    try {
      await persist(() => client.request('DELETE', path, options, { signal }))
    } catch (error) {
      if (!isApiError(error, 404, 409)) throw error
    }
  }
  const query = new URLSearchParams({ labelSelector: `${LABELS.canary}=${owner}` })
  const { items } = await persist(() =>
    client.request<{ readonly items: readonly Pod[] }>('GET', `${pods}?${query.toString()}`, undefined, { signal }),
  )
  for (const { metadata } of items)
    if (metadata.deletionTimestamp === undefined)
      await remove(`${pods}/${metadata.name}`, { gracePeriodSeconds: 1, preconditions: { uid: metadata.uid } })
  for (const part of CANARY_PARTS) await remove(`${policiesPath(namespace)}/${canaryPolicyName(owner, part)}`, {})
}
