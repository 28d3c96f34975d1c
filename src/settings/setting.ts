import { resolve } from 'node:path'
import { ADDRESS_POOL_RULE, parseAddressPool } from '../domain/network/address-pool.ts'
import { DENIAL_WORDS, parseRange, RANGE_RULE, RANGES_MAX } from '../domain/network/operator-denials.ts'
import { parsePublish, PUBLISH_RULE, type PublishRange } from '../domain/workers/publishing.ts'
import { SANDBOX_IDS, type IdRange } from '../domain/workers/id-range.ts'

/** One setting. Its flag overrides its environment variable, which overrides its default. */
export type Setting<T> = {
  readonly variable: string
  readonly flag: string | null
  readonly fallback: string | null
  readonly unit: string
  readonly meaning: string
  /** True if an error must not contain the value. */
  readonly isSecret?: true
  /** Returns the parsed value, or a description of the accepted values. */
  readonly parse: (text: string) => { readonly value: T } | { readonly accepted: string }
}

/**
 * Accepts a text that is not empty. An empty address, for example, would mean that the API listens on all addresses.
 */
export const nonEmptyText: Setting<string>['parse'] = (value) =>
  value === '' ? { accepted: 'a text that is not empty' } : { value }

/**
 * Accepts the path of a folder and returns it as an absolute path. An empty path is refused, because it would become
 * the current folder.
 */
export const directoryPath: Setting<string>['parse'] = (seen) =>
  seen === '' ? { accepted: 'the path of a folder' } : { value: resolve(seen) }

/** Accepts an http or https URL without a path. Returns its origin. */
export const httpOrigin: Setting<string>['parse'] = (seen) => {
  const url = URL.canParse(seen) ? new URL(seen) : null
  const isFine =
    url !== null &&
    /^https?:$/.test(url.protocol) &&
    /^\/?$/.test(url.pathname) &&
    url.search + url.hash + url.username === ''
  return isFine ? { value: url.origin } : { accepted: 'http:// or https:// with a host and, if need be, a port' }
}

/**
 * Accepts what the driver of PostgreSQL takes: a URL with its scheme, or the folder of a Unix socket. The driver takes a URL without
 * a scheme, such as `db.internal:5432/sandyard`, for one of this machine.
 */
export const postgresUrl: Setting<string>['parse'] = (seen) => {
  const isSocket = /^(?:\/|socket:)/.test(seen)
  const isUrl = /^postgres(?:ql)?:\/\//.test(seen) && URL.canParse(seen.replace('@/', '@localhost/'))
  return isSocket || isUrl ? { value: seen } : { accepted: 'postgres://USER:PASSWORD@HOST:PORT/DATABASE' }
}

/** An address on which a process listens. */
export type ListenAddress = { readonly host: string; readonly port: number }

/** Accepts a host and a port. An IPv6 address is in brackets. */
export const listenAddress: Setting<ListenAddress>['parse'] = (seen) => {
  const [, bracketed, name, digits] = /^(?:\[([\da-fA-F:]+)\]|([\w.-]+)):(\d{1,5})$/.exec(seen) ?? []
  const port = Number(digits)
  const host = bracketed ?? name
  if (host === undefined || port > 65_535) return { accepted: 'host:port, such as 127.0.0.1:9480 or [::1]:9480' }
  return { value: { host, port } }
}

/** Accepts integers from `least` to `most`. */
export function integerBetween(least: number, most: number): Setting<number>['parse'] {
  return (seen) => {
    const value = /^\d{1,9}$/.test(seen) ? Number(seen) : Number.NaN
    const accepted = `a whole number from ${String(least)} to ${String(most)}`
    return value >= least && value <= most ? { value } : { accepted }
  }
}

/** Accepts `FIRST-LAST`, a range of user ids of the host for at least one sandbox. */
export const userIdRange: Setting<IdRange>['parse'] = (seen) => {
  const [, first, last] = /^(\d{1,10})-(\d{1,10})$/.exec(seen) ?? []
  const value = { first: Number(first), last: Number(last) }
  const isFine = value.first >= LEAST_ID && value.last <= MOST_ID && value.last - value.first + 1 >= SANDBOX_IDS
  if (first !== undefined && isFine) return { value }
  const bounds = `${String(LEAST_ID)} to ${String(MOST_ID)}`
  return { accepted: `FIRST-LAST, a range of at least ${String(SANDBOX_IDS)} user ids from ${bounds}` }
}

/** Accepts the block of addresses for the networks of sandboxes. */
export const addressPool: Setting<string>['parse'] = (seen) =>
  parseAddressPool(seen) === null ? { accepted: ADDRESS_POOL_RULE } : { value: seen }

/** Accepts the addresses and ports that a worker may publish. */
export const publishRanges: Setting<readonly PublishRange[]>['parse'] = (seen) => {
  const value = parsePublish(seen)
  return value === null ? { accepted: PUBLISH_RULE } : { value }
}

/** The first id above those that layers, disks and volumes store on disk (100000 to 165535). */
const LEAST_ID = 165_536
/** The last id below 2^31. Some programs treat larger ids as negative. */
const MOST_ID = 2_147_483_647

/** Accepts one of the given words. */
export function oneOf<const T extends string>(words: readonly T[]): Setting<T>['parse'] {
  return (seen) => {
    const value = words.find((word) => word === seen)
    return value === undefined ? { accepted: words.join(', ') } : { value }
  }
}

/** Accepts a list of the operator's denials, separated by commas. `none` is the empty list. */
export const denials: Setting<readonly string[]>['parse'] = (seen) => {
  if (seen === 'none') return { value: [] }
  const ranges = seen.split(',').map((one) => {
    const text = one.trim()
    return DENIAL_WORDS.find((word) => word === text) ?? parseRange(text)
  })
  const value = ranges.filter((range) => range !== null)
  if (value.length === ranges.length && value.length <= RANGES_MAX) return { value }
  const words = DENIAL_WORDS.join(', ')
  return { accepted: `none, or up to ${String(RANGES_MAX)} of these with commas between: ${words}; ${RANGE_RULE}` }
}
