import { isUtf8 } from 'node:buffer'
import { RequestRefused } from '../request-refused.ts'

/** One field of a request, with its bytes as Latin-1 text. */
export type Field = { readonly name: string; readonly value: string }

/** The head of an HTTP/1 request. All text is Latin-1, so that it is written as it was read. */
export type RequestHead = {
  readonly method: string
  readonly target: string
  readonly version: string
  readonly fields: readonly Field[]
  /** The name of `Host` in lower case, without a port. */
  readonly host: string
  readonly body: number | 'chunked'
}

const REQUEST_LINE = /^([!#$%&'*+\-.^_`|~\w]+) ([!-~\x80-\xff]+) HTTP\/1\.([01])$/
const FIELD = /^([!#$%&'*+\-.^_`|~\w]+):(.*)$/
// oxlint-disable-next-line no-control-regex
const FORBIDDEN_BYTES = /[\0\r\n]/

/** Parses a head without its final empty line. Whatever two servers might read differently is refused. */
export function parseHead(bytes: Buffer): RequestHead {
  if (!isUtf8(bytes)) throw new RequestRefused('the head is not UTF-8')
  const [first = '', ...rest] = bytes.toString('latin1').split('\r\n')
  const [, method = '', target = '', minor = ''] = REQUEST_LINE.exec(first) ?? []
  if (method === '') throw new RequestRefused('malformed request line')
  const fields = parseFields(rest)
  const host = hostOf(method, target, fields)
  return { method, target, version: `HTTP/1.${minor}`, fields, host, body: bodyOf(fields, minor) }
}

export function parseFields(lines: readonly string[]): readonly Field[] {
  return lines.map((line) => {
    const [, name = '', value = ''] = FORBIDDEN_BYTES.test(line) ? [] : (FIELD.exec(line) ?? [])
    if (name === '') throw new RequestRefused('malformed header field')
    return { name, value: trimBlanks(value) }
  })
}

/** Removes spaces and tabs at both ends. A regular expression would try each run of them inside, and its end, again. */
function trimBlanks(text: string): string {
  const isBlank = (at: number): boolean => text[at] === ' ' || text[at] === '\t'
  let start = 0
  let end = text.length
  while (start < end && isBlank(start)) start += 1
  while (start < end && isBlank(end - 1)) end -= 1
  return text.slice(start, end)
}

export function renderHead({ method, target, version, fields }: RequestHead): Buffer {
  const lines = fields.map(({ name, value }) => `${name}: ${value}\r\n`)
  return Buffer.from(`${method} ${target} ${version}\r\n${lines.join('')}\r\n`, 'latin1')
}

export function valuesOf(fields: readonly Field[], name: string): readonly string[] {
  return fields.filter((field) => field.name.toLowerCase() === name).map(({ value }) => value)
}

export function listOf(fields: readonly Field[], name: string): readonly string[] {
  return valuesOf(fields, name)
    .flatMap((value) => value.split(','))
    .map((item) => item.trim().toLowerCase())
    .filter((item) => item !== '')
}

/** Parses a CONNECT request with its final empty line. */
export function parseConnect(bytes: Buffer): Pick<RequestHead, 'method' | 'target' | 'fields' | 'host'> & {
  readonly port: number
} {
  if (!isUtf8(bytes)) throw new RequestRefused('the head is not UTF-8')
  const [first = '', ...rest] = bytes.toString('latin1').split('\r\n').slice(0, -2)
  const [, target = '', port = ''] = /^CONNECT ([!-~]+:(\d{1,5})) HTTP\/1\.[01]$/.exec(first) ?? []
  const host = hostNameOf(target)
  const fields = parseFields(rest)
  const hosts = valuesOf(fields, 'host')
  if (host === null) throw new RequestRefused('malformed CONNECT')
  if (hosts.length > 1 || hosts.some((value) => hostNameOf(value) !== host))
    throw new RequestRefused('a Host other than that of CONNECT')
  if (bodyOf(fields, '1') !== 0) throw new RequestRefused('a body of CONNECT')
  return { method: 'CONNECT', target, fields, host, port: Number(port) }
}

function hostOf(method: string, target: string, fields: readonly Field[]): string {
  const hosts = valuesOf(fields, 'host')
  const host = hosts.length === 1 ? hostNameOf(hosts[0] ?? '') : null
  if (host === null) throw new RequestRefused('not exactly one Host')
  if (method === 'CONNECT') throw new RequestRefused('CONNECT to an origin server')
  if (target.startsWith('/') || target === '*') return host
  const [, authority = ''] = /^https?:\/\/([^/?#]*)/i.exec(target) ?? []
  if (hostNameOf(authority) !== host) throw new RequestRefused('a target for another host than Host')
  return host
}

/** The host of an authority, in lower case without a port. Null if it is malformed. */
export function hostNameOf(authority: string): string | null {
  const [, name = ''] = /^(\[[\da-f:.]+\]|[^:@/\s]+)(?::\d*)?$/i.exec(authority) ?? []
  return name === ''
    ? null
    : name
        .toLowerCase()
        .replace(/\.$/, '')
        .replace(/^\[|\]$/g, '')
}

function bodyOf(fields: readonly Field[], minor: string): number | 'chunked' {
  const codings = valuesOf(fields, 'transfer-encoding')
  const lengths = valuesOf(fields, 'content-length').flatMap((value) => value.split(',').map((item) => item.trim()))
  if (codings.length > 0) {
    const isChunked = codings.length === 1 && codings[0]?.toLowerCase() === 'chunked' && minor === '1'
    if (!isChunked || lengths.length > 0) throw new RequestRefused('a Transfer-Encoding other than one chunked')
    return 'chunked'
  }
  const [length = '0'] = lengths
  if (!/^\d{1,15}$/.test(length) || lengths.some((other) => other !== length))
    throw new RequestRefused('malformed or different Content-Length')
  return Number(length)
}
