import { isUtf8 } from 'node:buffer'
import { checkHead } from './check-head.ts'
import { makeSearch, makeViolationFinder } from '../placeholders/find-placeholders.ts'
import type { HostSecrets } from '../placeholders/host-secrets.ts'
import type { RequestRules } from './intercepted-connection.ts'
import { refusePlaceholders, refuseViolation } from './request-body.ts'
import { hostNameOf, type Field } from './request-head.ts'
import { RequestRefused, type RequestContext } from '../request-refused.ts'
import { substituteHead } from './substitute.ts'

export type Http2Request = {
  /** The head with the values of secrets: names and values in turn. */
  readonly rawHeaders: readonly string[]
  /** Throws `RequestRefused` if a part of the body has a placeholder that must not go there or can't be replaced. */
  readonly checkBody: (bytes: Buffer) => void
  /** Throws `RequestRefused` if trailers have a placeholder that must not go there. */
  readonly checkTrailers: (rawHeaders: readonly string[]) => void
}

/** Checks the head of an HTTP/2 request, and puts values in. Throws `RequestRefused`. Texts are Latin-1. */
export function readHttp2Request(rawHeaders: readonly string[], rules: RequestRules): Http2Request {
  const all = fieldsOf(rawHeaders)
  const pseudo = all.filter(({ name }) => name.startsWith(':'))
  const valueOf = (wanted: string): string => pseudo.find(({ name }) => name === wanted)?.value ?? ''
  const fields = all.filter(({ name }) => !name.startsWith(':'))
  const [method, target] = [valueOf(':method'), valueOf(':path')]
  const host = hostNameOf(valueOf(':authority'))
  return withContext({ method, host, path: target.split(/[?#]/)[0] ?? '' }, () => {
    if (!isUtf8(Buffer.from(rawHeaders.join('\n'), 'latin1'))) throw new RequestRefused('the head is not UTF-8')
    if (host === null || pseudo.filter(({ name }) => name === ':authority').length !== 1)
      throw new RequestRefused('not exactly one :authority')
    if (fields.some(({ name, value }) => name === 'host' && hostNameOf(value) !== host))
      throw new RequestRefused('a Host other than :authority')
    if (rules.authority !== null && host !== rules.authority)
      throw new RequestRefused('an :authority other than the server name')
    if (method === 'CONNECT') throw new RequestRefused('CONNECT to an origin server')
    if (!target.startsWith('/') && target !== '*') throw new RequestRefused('malformed :path')
    const secrets = rules.secretsFor(host)
    checkHead({ method, target, fields }, secrets)
    const changed = substituteHead({ target, fields }, secrets)
    const head = pseudo.map((field) => (field.name === ':path' ? { ...field, value: changed.target } : field))
    const search = searchBody(secrets)
    const context = { method, host, path: target.split('?')[0] ?? '' }
    return {
      rawHeaders: [...head, ...changed.fields].flatMap(({ name, value }) => [name, value]),
      checkBody: (bytes) => {
        withContext(context, () => {
          search(bytes)
        })
      },
      checkTrailers: (trailers) => {
        const text = fieldsOf(trailers).map(({ name, value }) => `${name}: ${value}`)
        withContext(context, () => {
          refuseViolation(makeViolationFinder(secrets)(text.join('\r\n'), 'trailer'))
        })
      },
    }
  })
}

/** The frames of a body have lengths of their own, so a body is never changed. */
function searchBody(secrets: HostSecrets): (bytes: Buffer) => void {
  const search = makeSearch(secrets, 'body')
  const wanted = secrets.allowed.filter(({ substitution }) => substitution.body)
  const refuse = wanted.length === 0 ? () => undefined : refusePlaceholders(wanted, secrets)
  return (bytes) => {
    refuseViolation(search(bytes))
    refuse(bytes)
  }
}

function withContext<Result>(context: RequestContext, run: () => Result): Result {
  try {
    return run()
  } catch (error) {
    if (!(error instanceof RequestRefused)) throw error
    const { message, violation, isByPolicy } = error
    throw new RequestRefused(message, { violation, isByPolicy, context })
  }
}

function fieldsOf(rawHeaders: readonly string[]): readonly Field[] {
  return rawHeaders.flatMap((name, index) => (index % 2 === 0 ? [{ name, value: rawHeaders[index + 1] ?? '' }] : []))
}
