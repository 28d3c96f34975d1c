import type { ApiClient } from '../../../kubernetes/api-client.ts'
import { isApiError } from '../../../kubernetes/api-error.ts'
import { SANDBOX_CONTAINER, type Pod } from '../pod.ts'
import { parseQuantity } from '../../../kubernetes/quantity.ts'

/** What a Pod's sandbox uses, as its cluster says. */
export type PodUse = {
  readonly pod: string
  /** When it was measured. Another measurement has another text. */
  readonly time: string
  /** The processor time since the start of the container. Null: unknown, but `cores` is known. */
  readonly cpuNs: number | null
  /** The processors in use, and over how many seconds. */
  readonly rate: { readonly cores: number; readonly seconds: number } | null
  /** Without the files that the kernel can drop. */
  readonly memoryBytes: number
  readonly diskBytes: number | null
  /** Since the start of the Pod. */
  readonly receivedBytes: number | null
  readonly sentBytes: number | null
}

/** A place where a cluster says what Pods use. `read` resolves with null if the worker may not ask there, or the cluster lacks it. */
export type UsageSource = {
  readonly name: 'summary of the kubelet' | 'metrics API'
  read(pods: readonly Pod[]): Promise<readonly PodUse[] | null>
}

type Client = Pick<ApiClient, 'request'>

/** How many nodes or namespaces are asked at once. */
const AT_ONCE = 8
const LIMIT_MS = 10_000

/** All sources, the one that knows most first. */
export function usageSources(client: Client): readonly UsageSource[] {
  return [
    {
      name: 'summary of the kubelet',
      read: (pods) =>
        readEach(pods, nodeOf, async (node) => {
          const path = `/api/v1/nodes/${node}/proxy/stats/summary`
          const summary = await client.request<Summary>('GET', path, undefined, { timeoutMs: LIMIT_MS })
          return (summary.pods ?? []).flatMap(useOfSummary)
        }),
    },
    {
      name: 'metrics API',
      read: (pods) =>
        readEach(
          pods,
          ({ metadata }) => metadata.namespace,
          async (one) => {
            const path = `/apis/metrics.k8s.io/v1beta1/namespaces/${one}/pods`
            const list = await client.request<PodMetricsList>('GET', path, undefined, { timeoutMs: LIMIT_MS })
            return list.items.flatMap(useOfMetrics)
          },
        ),
    },
  ]
}

function nodeOf({ spec }: Pod): string | undefined {
  return spec?.nodeName
}

/** Asks once for each node or namespace. Null if the API server refuses the first one, and skips one that doesn't answer. */
async function readEach(
  pods: readonly Pod[],
  placeOf: (pod: Pod) => string | undefined,
  ask: (place: string) => Promise<readonly PodUse[]>,
): Promise<readonly PodUse[] | null> {
  const places = [...new Set(pods.flatMap((pod) => placeOf(pod) ?? []))]
  const uses: PodUse[] = []
  for (let at = 0; at < places.length; at += AT_ONCE) {
    const answers = await Promise.allSettled(places.slice(at, at + AT_ONCE).map(ask))
    for (const answer of answers)
      if (answer.status === 'fulfilled') uses.push(...answer.value)
      else if (isApiError(answer.reason, 401, 403, 404)) return null
  }
  return uses
}

type Summary = {
  readonly pods?: readonly {
    readonly podRef: { readonly name: string }
    readonly network?: { readonly rxBytes?: number; readonly txBytes?: number }
    readonly containers?: readonly {
      readonly name: string
      readonly cpu?: { readonly time: string; readonly usageCoreNanoSeconds?: number }
      readonly memory?: { readonly workingSetBytes?: number }
      readonly rootfs?: { readonly usedBytes?: number }
    }[]
  }[]
}

function useOfSummary({ podRef, network, containers = [] }: NonNullable<Summary['pods']>[number]): readonly PodUse[] {
  const { cpu, memory, rootfs } = containers.find(({ name }) => name === SANDBOX_CONTAINER) ?? {}
  if (cpu?.usageCoreNanoSeconds === undefined || memory?.workingSetBytes === undefined) return []
  return [
    {
      pod: podRef.name,
      time: cpu.time,
      cpuNs: cpu.usageCoreNanoSeconds,
      rate: null,
      memoryBytes: memory.workingSetBytes,
      diskBytes: rootfs?.usedBytes ?? null,
      receivedBytes: network?.rxBytes ?? null,
      sentBytes: network?.txBytes ?? null,
    },
  ]
}

type PodMetricsList = {
  readonly items: readonly {
    readonly metadata: { readonly name: string }
    readonly timestamp: string
    /** Such as `15.2s`. */
    readonly window: string
    readonly containers: readonly {
      readonly name: string
      readonly usage: { readonly cpu?: string; readonly memory?: string }
    }[]
  }[]
}

function useOfMetrics({ metadata, timestamp, window, containers }: PodMetricsList['items'][number]): readonly PodUse[] {
  const usage = containers.find(({ name }) => name === SANDBOX_CONTAINER)?.usage
  const [cores, memoryBytes] = [parseQuantity(usage?.cpu), parseQuantity(usage?.memory)]
  const seconds = parseDurationSecs(window)
  if (cores === null || memoryBytes === null || seconds === null) return []
  const unknown = { cpuNs: null, diskBytes: null, receivedBytes: null, sentBytes: null }
  return [{ ...unknown, pod: metadata.name, time: timestamp, rate: { cores, seconds }, memoryBytes }]
}

/** Parses a duration of Go, such as `15.2s` or `1m0s`. */
function parseDurationSecs(text: string): number | null {
  const [, minutes = '0', seconds = '0'] = /^(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?$/.exec(text) ?? []
  const sum = Number(minutes) * 60 + Number(seconds)
  return sum > 0 ? sum : null
}
