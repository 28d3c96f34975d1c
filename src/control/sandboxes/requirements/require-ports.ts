import type { OrgId } from '../../../domain/ids.ts'
import { opensPort } from '../../../domain/network/network-policy.ts'
import { refusalProblem } from '../../../domain/refusal.ts'
import type { NetworkSpec } from '../../../domain/spec/spec.ts'
import { excludes, type PublishedPort } from '../../../domain/spec/published-ports.ts'
import {
  describeRanges,
  offersAddress,
  offersPort,
  rangesOf,
  type Publishing,
} from '../../../domain/workers/publishing.ts'
import { mayServeOrg } from '../../../domain/workers/worker-bounds.ts'

/** Reads the workers that may get runs. */
export type PublishingReader = {
  readonly readFleet: (how: { readonly isFresh: true }) => Promise<readonly PublishingWorker[]>
}
type PublishingWorker = Publishing & Parameters<typeof mayServeOrg>[0]

/**
 * Throws `invalid_sandbox_config` for a port that the sandbox's own policy keeps closed, that no worker may publish, or
 * that other sandboxes publish on every worker that may. A port may still be taken before the sandbox gets a worker; the
 * sandbox then waits for it.
 */
export async function requirePorts(
  deps: PublishingReader,
  org: OrgId,
  { ports = [], policy }: NetworkSpec,
): Promise<void> {
  if (ports.length === 0) return
  ports.forEach((port, index) => {
    if (opensPort(policy, port.protocol, port.guest_port)) return
    const seen = `${port.protocol} port ${String(port.guest_port)}, which network.policy keeps closed`
    const accepted = 'a port that an ingress rule allows, or default_ingress: allow'
    throw refusal(index, 'guest_port', seen, accepted)
  })
  const workers = (await deps.readFleet({ isFresh: true })).filter((worker) => mayServeOrg(worker, org))
  const found = findRefusal(workers, ports)
  if (found !== null) throw found
}

function findRefusal(workers: readonly PublishingWorker[], ports: readonly PublishedPort[]) {
  for (const [index, port] of ports.entries()) {
    const { host_bind, host_port } = port
    const rangesAt = workers.map(({ publishes = [] }) => publishes)
    if (!rangesAt.some((ranges) => offersAddress(ranges, port)))
      return refusal(index, 'host_bind', host_bind, offered(rangesAt.flat()))
    const offering = workers.filter(({ publishes = [] }) => offersPort(publishes, port))
    if (offering.length === 0)
      return refusal(index, 'host_port', String(host_port), offered(rangesAt.flatMap((one) => rangesOf(one, host_bind)))) // prettier-ignore
    const isFree = offering.some(({ taken_ports = [] }) => !taken_ports.some((taken) => excludes(taken, port)))
    if (!isFree)
      return refusal(index, 'host_port', `${String(host_port)}, which another sandbox publishes`, 'another port, or 0 for a free one') // prettier-ignore
  }
  return null
}

function offered(ranges: Parameters<typeof describeRanges>[0]): string {
  const distinct = [...new Set(ranges.map((range) => describeRanges([range])))]
  return distinct.length === 0
    ? 'no port, because no worker publishes ports (SANDYARD_PUBLISH)'
    : `what workers publish (SANDYARD_PUBLISH): ${distinct.join(', ')}`
}

function refusal(index: number, key: keyof PublishedPort, seen: string, accepted: string) {
  const field = `network.ports[${String(index)}].${key}`
  return refusalProblem({ code: 'invalid_sandbox_config', field, seen, accepted })
}
