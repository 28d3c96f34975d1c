/** Which ports a worker may publish for its sandboxes, and which of them are taken. */
import { PORT_MAX } from '../requests/request-bounds.ts'
import { covers, excludes, usualForm, type PublishedPort } from '../spec/published-ports.ts'

/** An address of a worker's machine, and the ports there that sandboxes may publish, both ends included. */
export type PublishRange = { readonly address: string; readonly first: number; readonly last: number }

/** The lowest port that the kernel doesn't reserve for privileged programs. */
const FIRST_UNPRIVILEGED = 1024
/** The maximum number of ranges of one worker. */
export const PUBLISH_RANGES_MAX = 16

export const PUBLISH_RULE =
  'off, loopback, or up to 16 of ADDRESS or ADDRESS:FIRST-LAST, joined by commas, such as 0.0.0.0:20000-29999 or [::1]:8080-8089'

/** Parses `SANDYARD_PUBLISH`. Null if the text is none of `PUBLISH_RULE`. */
export function parsePublish(text: string): readonly PublishRange[] | null {
  if (text === 'off') return []
  if (text === 'loopback') return ['127.0.0.1', '::1'].map((address) => ({ address, ...WITHOUT_PRIVILEGED }))
  const ranges = text.split(',').map((one) => parseRange(one.trim()))
  if (ranges.length > PUBLISH_RANGES_MAX) return null
  return ranges.every((range) => range !== null) ? ranges : null
}

const WITHOUT_PRIVILEGED = { first: FIRST_UNPRIVILEGED, last: PORT_MAX }

function parseRange(text: string): PublishRange | null {
  const [, v6, v4, from, to] = /^(?:\[([\da-f:.]+)\]|([\d.]+))(?::(\d{1,5})(?:-(\d{1,5}))?)?$/i.exec(text) ?? []
  const address = usualForm(v6 ?? v4 ?? '')
  if (address === null) return null
  if (from === undefined) return { address, ...WITHOUT_PRIVILEGED }
  const [first, last] = [Number(from), Number(to ?? from)]
  return first >= 1 && first <= last && last <= PORT_MAX ? { address, first, last } : null
}

/** Describes ranges for people, such as `127.0.0.1:1024-65535`. */
export function describeRanges(ranges: readonly PublishRange[]): string {
  const describe = ({ address, first, last }: PublishRange): string =>
    `${address.includes(':') ? `[${address}]` : address}:${String(first)}-${String(last)}`
  return ranges.map(describe).join(', ')
}

/** Describes for operators what sandboxes may publish. */
export function describePublishing(ranges: readonly PublishRange[]): string {
  return ranges.length === 0
    ? 'sandboxes publish none (SANDYARD_PUBLISH)'
    : `sandboxes may publish ${describeRanges(ranges)} (SANDYARD_PUBLISH)`
}

/** Whether ranges contain the address of a port. An unspecified address contains all addresses of its family. */
export function offersAddress(ranges: readonly PublishRange[], { host_bind }: PublishedPort): boolean {
  return rangesOf(ranges, host_bind).length > 0
}

/** Whether ranges contain a port. Port 0 stands for any of the address. */
export function offersPort(ranges: readonly PublishRange[], { host_bind, host_port }: PublishedPort): boolean {
  const offered = rangesOf(ranges, host_bind)
  return offered.some(({ first, last }) => host_port === 0 || (first <= host_port && host_port <= last))
}

/** The ranges from which a port on this address may come. */
export function rangesOf(ranges: readonly PublishRange[], bind: string): readonly PublishRange[] {
  return ranges.filter(({ address }) => address === bind || covers(address, bind))
}

/** What a worker offers to publish, and the ports that its runs have. */
export type Publishing = {
  /** Absent: nothing. */
  readonly publishes?: readonly PublishRange[]
  /** Absent: none. */
  readonly taken_ports?: readonly PublishedPort[]
}

/** Whether a worker offers all ports, and none of them is taken. */
export function canPublish({ publishes = [], taken_ports = [] }: Publishing, ports: readonly PublishedPort[]): boolean {
  return ports.every((port) => offersPort(publishes, port) && !taken_ports.some((taken) => excludes(taken, port)))
}

/** The fact of a run with the ports that its worker opened, such as `8080 28011`, in the order of the specification. */
const HOST_PORTS_FACT = 'host_ports'

/** The fact about opened ports. Empty if there are none. */
export function hostPortsFact(ports: readonly PublishedPort[]): Readonly<Record<string, string>> {
  return ports.length === 0 ? {} : { [HOST_PORTS_FACT]: ports.map(({ host_port }) => host_port).join(' ') }
}

/** Reads `HOST_PORTS_FACT`. Null if a run has none. */
export function hostPortsOf(facts: Readonly<Record<string, string>> | undefined): readonly number[] | null {
  const ports = facts?.[HOST_PORTS_FACT]?.split(' ').map(Number) ?? []
  const isFine = ports.every((port) => Number.isInteger(port) && port > 0 && port <= PORT_MAX)
  return ports.length > 0 && isFine ? ports : null
}
