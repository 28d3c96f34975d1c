import type { RunSecret } from '../../../domain/spec/secrets.ts'
import type { HostSecrets } from '../placeholders/host-secrets.ts'
import { makeReplacer, type Replacer } from '../placeholders/replace-placeholders.ts'
import type { Field, RequestHead } from './request-head.ts'
import { RequestRefused } from '../request-refused.ts'

/** How long all fields may be with the values in them. Servers take far less. */
const MAX_LENGTH = 1024 * 1024

const BASIC = /^(basic[ ]+)(\S*)$/i

/** Puts values into the query and the header fields of a request. */
export function substituteHead<Head extends Pick<RequestHead, 'target' | 'fields'>>(
  head: Head,
  { allowed, index }: Pick<HostSecrets, 'allowed' | 'index'>,
): Head {
  if (allowed.length === 0) return head
  const replace = makeReplacer(allowed, index)
  const target = substituteQuery(head.target, replace)
  let length = target.length
  const fields = head.fields.map((field) => {
    const substituted = substituteField(field, replace)
    length += substituted.value.length
    if (length > MAX_LENGTH) throw new RequestRefused('values that are too long together')
    return substituted
  })
  return { ...head, target, fields }
}

function substituteQuery(target: string, replace: Replacer): string {
  const start = target.indexOf('?')
  if (start === -1) return target
  const query = replace(target.slice(start), ({ substitution }) => substitution.query)
  // oxlint-disable-next-line no-control-regex
  if (/[\0-\x20\x7f]/.test(query)) throw new RequestRefused('a value that a query cannot carry')
  return target.slice(0, start) + query
}

function substituteField({ name, value }: Field, replace: Replacer): Field {
  const lower = name.toLowerCase()
  const isInField = ({ substitution: { header_fields } }: RunSecret): boolean => header_fields?.includes(lower) ?? true
  const basic = lower === 'authorization' ? BASIC.exec(value) : null
  const replaced =
    basic === null
      ? replace(value, (secret) => secret.substitution.headers && isInField(secret))
      : substituteBasic(basic, (credentials) =>
          replace(credentials, (secret) => secret.substitution.basic_auth && isInField(secret)),
        )
  // oxlint-disable-next-line no-control-regex
  if (/[\0\r\n]/.test(replaced)) throw new RequestRefused('a value that a header field cannot carry')
  return { name, value: replaced }
}

function substituteBasic([whole, scheme = '', credentials = '']: readonly string[], replace: Replacer): string {
  const decoded = Buffer.from(credentials, 'base64').toString('latin1')
  const replaced = replace(decoded)
  return replaced === decoded ? (whole ?? '') : scheme + Buffer.from(replaced, 'latin1').toString('base64')
}
