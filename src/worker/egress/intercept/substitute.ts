import type { RunSecret } from '../../../domain/spec/secrets.ts'
import type { Field, RequestHead } from './request-head.ts'
import { RequestRefused } from './request-refused.ts'

const BASIC = /^(basic[ ]+)(\S*)$/i

/** Puts values into the query and the header fields of a request. */
export function substituteHead<Head extends Pick<RequestHead, 'target' | 'fields'>>(
  head: Head,
  secrets: readonly RunSecret[],
): Head {
  if (secrets.length === 0) return head
  return {
    ...head,
    target: substituteQuery(head.target, secrets),
    fields: head.fields.map((field) => substituteField(field, secrets)),
  }
}

/** Replaces all placeholders at once, so that no value is searched for the placeholder of another secret. */
export function replaceAll(text: string, secrets: readonly RunSecret[]): string {
  const found = secrets.filter(({ placeholder }) => text.includes(placeholder))
  if (found.length === 0) return text
  const longestFirst = found.toSorted((one, other) => other.placeholder.length - one.placeholder.length)
  const pattern = new RegExp(longestFirst.map(({ placeholder }) => RegExp.escape(placeholder)).join('|'), 'g')
  return text.replace(pattern, (match) => found.find(({ placeholder }) => placeholder === match)?.value ?? match)
}

function substituteQuery(target: string, secrets: readonly RunSecret[]): string {
  const start = target.indexOf('?')
  if (start === -1) return target
  const query = replaceAll(
    target.slice(start),
    secrets.filter(({ substitution }) => substitution.query),
  )
  // oxlint-disable-next-line no-control-regex
  if (/[\0-\x20\x7f]/.test(query)) throw new RequestRefused('a value that a query cannot carry')
  return target.slice(0, start) + query
}

function substituteField({ name, value }: Field, secrets: readonly RunSecret[]): Field {
  const lower = name.toLowerCase()
  const inField = secrets.filter(({ substitution: { header_fields } }) => header_fields?.includes(lower) ?? true)
  const basic = lower === 'authorization' ? BASIC.exec(value) : null
  const replaced =
    basic === null
      ? replaceAll(
          value,
          inField.filter(({ substitution }) => substitution.headers),
        )
      : substituteBasic(
          basic,
          inField.filter(({ substitution }) => substitution.basic_auth),
        )
  // oxlint-disable-next-line no-control-regex
  if (/[\0\r\n]/.test(replaced)) throw new RequestRefused('a value that a header field cannot carry')
  return { name, value: replaced }
}

function substituteBasic(
  [whole, scheme = '', credentials = '']: readonly string[],
  secrets: readonly RunSecret[],
): string {
  const decoded = Buffer.from(credentials, 'base64').toString('latin1')
  const replaced = replaceAll(decoded, secrets)
  return replaced === decoded ? (whole ?? '') : scheme + Buffer.from(replaced, 'latin1').toString('base64')
}

/** Replaces placeholders in a body that arrives in parts. It holds back an end that may be the begin of a placeholder. */
export function makeReplacement(secrets: readonly RunSecret[]): {
  readonly push: (bytes: Buffer) => Buffer
  readonly end: () => Buffer
} {
  const longest = Math.max(0, ...secrets.map(({ placeholder }) => placeholder.length))
  let held = ''
  return {
    push(bytes) {
      const text = held + bytes.toString('latin1')
      const keep = beginLength(text)
      held = text.slice(text.length - keep)
      return Buffer.from(replaceAll(text.slice(0, text.length - keep), secrets), 'latin1')
    },
    end() {
      const rest = Buffer.from(replaceAll(held, secrets), 'latin1')
      held = ''
      return rest
    },
  }

  function beginLength(text: string): number {
    const lastPlaces = secrets.map(({ placeholder }) => [text.lastIndexOf(placeholder), placeholder.length] as const)
    /** A begin inside a whole placeholder is none: that placeholder is replaced as it is. */
    const isInside = (start: number): boolean =>
      lastPlaces.some(([at, length]) => at !== -1 && at < start && at + length > start)
    for (let start = Math.max(0, text.length - longest + 1); start < text.length; start += 1)
      if (secrets.some(({ placeholder }) => isBegin(text.slice(start), placeholder)) && !isInside(start))
        return text.length - start
    return 0
  }
}

function isBegin(end: string, placeholder: string): boolean {
  return end.length < placeholder.length && placeholder.startsWith(end)
}
