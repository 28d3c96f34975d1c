import { isIPv4, isIPv6, SocketAddress } from 'node:net'
import { describeSeen, type Refuse } from '../refusal.ts'
import { PORT_MAX } from '../requests/request-bounds.ts'

/** The maximum number of ports that one sandbox publishes. */
export const PUBLISHED_PORTS_MAX = 64

export const PUBLISHED_PROTOCOLS = ['tcp', 'udp'] as const

/** A port of the sandbox that the worker's machine listens on for it. */
export type PublishedPort = {
  /** An address of the worker's machine, or the unspecified address for all of them. */
  readonly host_bind: string
  /** 0: the worker picks a free port at each start. */
  readonly host_port: number
  readonly guest_port: number
  readonly protocol: (typeof PUBLISHED_PROTOCOLS)[number]
}

/** One of the `ports` of a request. */
export type PublishedPortInput = Pick<PublishedPort, 'guest_port'> & {
  readonly host_bind?: string
  readonly host_port?: number
  readonly protocol?: PublishedPort['protocol']
}

/** The address that a request means without `host_bind`. */
const DEFAULT_BIND = '127.0.0.1'

/** Checks the ports of a request. An absent port of the machine is 0. */
export function normalizePorts(
  input: readonly PublishedPortInput[],
  network: { readonly enabled: boolean },
  refuse: Refuse,
): readonly PublishedPort[] {
  if (input.length > 0 && !network.enabled)
    no(refuse, 'network.ports', input, 'an empty list, because network.enabled is false')
  const ports: PublishedPort[] = []
  input.forEach(({ host_bind = DEFAULT_BIND, host_port = 0, guest_port, protocol = 'tcp' }, index) => {
    const at = `network.ports[${String(index)}]`
    const port = { host_bind: usualForm(host_bind) ?? host_bind, host_port, guest_port, protocol }
    if (usualForm(host_bind) === null)
      no(refuse, `${at}.host_bind`, host_bind, 'an IP address of the machine, such as 127.0.0.1')
    if (guest_port === 0) no(refuse, `${at}.guest_port`, guest_port, `1 to ${String(PORT_MAX)}`)
    const other = ports.findIndex((one) => excludes(one, port))
    if (other !== -1)
      no(refuse, `${at}.host_port`, host_port, `a port that network.ports[${String(other)}] doesn't take, or 0 for a free one`) // prettier-ignore
    ports.push(port)
  })
  return ports
}

/** Whether two ports can't be open on one machine at the same time. */
export function excludes(one: PublishedPort, other: PublishedPort): boolean {
  if (one.host_port === 0 || one.host_port !== other.host_port || one.protocol !== other.protocol) return false
  return one.host_bind === other.host_bind || covers(one.host_bind, other.host_bind) || covers(other.host_bind, one.host_bind) // prettier-ignore
}

/** Whether `bind` is the unspecified address of the family of `address`. */
export function covers(bind: string, address: string): boolean {
  return bind === (address.includes(':') ? '::' : '0.0.0.0')
}

/** The usual spelling of an address. Null if the text is none. */
export function usualForm(address: string): string | null {
  if (isIPv4(address)) return address
  return isIPv6(address) && !address.includes('%') ? new SocketAddress({ address, family: 'ipv6' }).address : null
}

function no(refuse: Refuse, field: string, seen: unknown, accepted: string): void {
  refuse({ code: 'invalid_sandbox_config', field, seen: describeSeen(seen), accepted })
}
