/**
 * The ports that sandboxes publish on this machine. The worker itself listens on them, and the router lets its connections
 * through to these ports of the sandbox alone. The sandbox's policy judges who connects, by the real address of the client.
 */
import { cidr } from '../../../domain/cidr.ts'
import type { RunId } from '../../../domain/ids.ts'
import { compileIngress, decidePacket } from '../../../domain/network/network-policy.ts'
import type { PublishedPort } from '../../../domain/spec/published-ports.ts'
import type { NetworkPolicy } from '../../../domain/spec/spec.ts'
import { offersPort, rangesOf, type PublishRange } from '../../../domain/workers/publishing.ts'
import { errorCodeOf } from '../../../lib/error-code.ts'
import { randomBelow, type Random } from '../../../lib/random.ts'
import { OwnerVisibleError } from '../../start-error.ts'
import { openTcpRelay } from './relay-tcp.ts'
import { openUdpRelay } from './relay-udp.ts'

/** How many connections and clients of UDP ports one sandbox may have at a time. */
const CLIENTS_MAX = 1_024
/** How many ports are tried before none counts as free. */
const TRIES_MAX = 64

/** What a relay needs: where it listens, where it connects to, and whom it serves. */
export type RelayInput = {
  readonly bind: string
  readonly port: number
  readonly target: { readonly host: string; readonly port: number }
  readonly allows: (address: string) => boolean
  /** The clients of all ports of the sandbox together. */
  readonly budget: { readonly acquire: () => boolean; readonly release: () => void }
}

export type Relay = {
  /** Ends all connections, and resolves when the port is free. */
  close(): Promise<void>
}

type SandboxPorts = {
  readonly ports: readonly PublishedPort[]
  /** The sandbox's address. */
  readonly address: string
  readonly policy: NetworkPolicy | null
}

export type PublishedPorts = {
  /**
   * Opens the ports of a run, and returns them with the ports of the machine that were picked for 0. Opens none if one of
   * them can't be opened, and rejects with `OwnerVisibleError`. Returns the same ports if they are open.
   */
  open(run: RunId, sandbox: SandboxPorts): Promise<readonly PublishedPort[]>
  /** Closes the ports of a run, with all connections. */
  close(run: RunId): Promise<void>
  closeAll(): Promise<void>
}

/** Makes the ports of a worker that may publish in `ranges`. */
export function makePublishedPorts(ranges: readonly PublishRange[], random: Random): PublishedPorts {
  const opened = new Map<RunId, { readonly ports: readonly PublishedPort[]; readonly relays: readonly Relay[] }>()

  async function openPort(wanted: PublishedPort, input: Omit<RelayInput, 'port'>) {
    const open = wanted.protocol === 'tcp' ? openTcpRelay : openUdpRelay
    if (wanted.host_port !== 0) return { port: wanted, relay: await open({ ...input, port: wanted.host_port }) }
    for (let tries = 1; ; tries++) {
      const port = pickPort(rangesOf(ranges, wanted.host_bind), random)
      try {
        return { port: { ...wanted, host_port: port }, relay: await open({ ...input, port }) }
      } catch (error) {
        if (errorCodeOf(error) !== 'EADDRINUSE' || tries === TRIES_MAX) throw error
      }
    }
  }

  async function openAll({ ports, address, policy }: SandboxPorts) {
    const rules = compileIngress(policy)
    const budget = makeBudget()
    await using failed = new AsyncDisposableStack()
    const done: { readonly port: PublishedPort; readonly relay: Relay }[] = []
    for (const [index, wanted] of ports.entries()) {
      if (!offersPort(ranges, wanted))
        throw notOpened(index, 'host_port', wanted, 'SANDYARD_PUBLISH of this worker does not have it')
      const { host_bind: bind, guest_port: port, protocol } = wanted
      const allows = (client: string): boolean =>
        decidePacket(rules, { peer: cidr(client.replace(/%.*/, '')), protocol, port }) === 'allow'
      try {
        const one = await openPort(wanted, { bind, target: { host: address, port }, allows, budget })
        done.push(one)
        failed.defer(() => one.relay.close())
      } catch (error) {
        throw describeFailure(index, wanted, error)
      }
    }
    failed.move()
    return { ports: done.map(({ port }) => port), relays: done.map(({ relay }) => relay) }
  }

  async function close(run: RunId): Promise<void> {
    const known = opened.get(run)
    opened.delete(run)
    await Promise.all(known?.relays.map((relay) => relay.close()) ?? [])
  }

  return {
    async open(run, sandbox) {
      const known = opened.get(run) ?? (await openAll(sandbox))
      opened.set(run, known)
      return known.ports
    },
    close,
    async closeAll() {
      await Promise.all([...opened.keys()].map(close))
    },
  }
}

function makeBudget(): RelayInput['budget'] {
  let left = CLIENTS_MAX
  return {
    acquire: () => left > 0 && left-- > 0,
    release: () => {
      left += 1
    },
  }
}

/** Picks any of the ports with equal chances. */
function pickPort(ranges: readonly PublishRange[], random: Random): number {
  let at = randomBelow(
    random,
    ranges.reduce((sum, { first, last }) => sum + last - first + 1, 0),
  )
  for (const { first, last } of ranges) {
    if (first + at <= last) return first + at
    at -= last - first + 1
  }
  throw new Error('no range has a port')
}

function describeFailure(index: number, wanted: PublishedPort, error: unknown): Error {
  const code = errorCodeOf(error)
  if (code === 'EADDRINUSE')
    return notOpened(index, 'host_port', wanted, 'another program of the machine has it; choose another, or 0 for a free one', error) // prettier-ignore
  if (code === 'EADDRNOTAVAIL')
    return notOpened(index, 'host_bind', wanted, 'the machine of this worker does not have the address', error)
  return error instanceof Error ? error : new Error(String(error))
}

function notOpened(index: number, key: 'host_bind' | 'host_port', port: PublishedPort, why: string, cause?: unknown) {
  return new OwnerVisibleError(`network.ports[${String(index)}].${key}: ${String(port[key])}: ${why}`, { cause })
}
