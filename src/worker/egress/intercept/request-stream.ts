import type { BodyBudget } from './body-budget.ts'
import { checkHead } from './check-head.ts'
import { makeSearch } from './find-placeholders.ts'
import type { HostSecrets } from './host-secrets.ts'
import { openBody, refuseViolation, type RequestBody } from './request-body.ts'
import { listOf, parseHead, renderHead, type RequestHead } from './request-head.ts'
import { RequestRefused, type RequestContext } from './request-refused.ts'
import { substituteHead } from './substitute.ts'

const MAX_HEAD = 64 * 1024

export type RequestStream = {
  /** Takes bytes of the client and returns what to forward. Throws `RequestRefused`. */
  readonly push: (bytes: Buffer) => readonly Buffer[]
  /** True while a request to upgrade waits for its response. Bytes are kept meanwhile, so push none. */
  readonly awaitsUpgrade: () => boolean
  /** Goes on after the response to an upgrade, and returns what to forward. */
  readonly finishUpgrade: (isAccepted: boolean) => readonly Buffer[]
  /** How many requests were begun. */
  readonly requests: () => number
  /** Whether the client waits for `100 Continue` of a request whose body is changed as a whole. */
  readonly takeContinue: () => boolean
  /** Whether bytes of a body are kept until it is complete. */
  readonly keepsBody: () => boolean
  /** How many bytes of an unfinished head, or behind a request to upgrade, are kept. */
  readonly heldBytes: () => number
  /** Releases what an unfinished request holds. */
  readonly close: () => void
}

type Options = {
  /** The only host that requests may name: that of the TLS handshake. Null for plain HTTP. */
  readonly authority: string | null
  readonly secretsFor: (host: string) => HostSecrets
  readonly budget: BodyBudget
  /** Whether the client speaks something else than HTTP to `authority`. Its bytes are only searched. */
  readonly isOpaque: boolean
}

/** Reads the requests of one connection, checks each, and puts values in. */
export function makeRequestStream({ authority, secretsFor, budget, isOpaque }: Options): RequestStream {
  let held: Buffer = Buffer.alloc(0)
  let body: RequestBody | null = null
  let secrets: HostSecrets | null = null
  let isUpgrade = false
  let isWaiting = false
  let expectsContinue = false
  let searchOpaque: ReturnType<typeof makeSearch> | null = null
  let requests = 0
  let context: RequestContext = { method: null, host: null, path: null }

  return {
    push: withContext(push),
    awaitsUpgrade: () => isWaiting,
    finishUpgrade: withContext((isAccepted: boolean) => {
      isWaiting = false
      isUpgrade = false
      if (isAccepted && secrets !== null) searchOpaque = makeSearch(secrets, 'opaque')
      const rest = held
      held = Buffer.alloc(0)
      return rest.length === 0 ? [] : push(rest)
    }),
    requests: () => requests,
    heldBytes: () => held.length,
    keepsBody: () => body !== null && body.head === null,
    close: closeBody,
    takeContinue() {
      const taken = expectsContinue
      expectsContinue = false
      return taken
    },
  }

  function withContext<Input>(run: (input: Input) => readonly Buffer[]): (input: Input) => readonly Buffer[] {
    return (input) => {
      try {
        return run(input)
      } catch (error) {
        if (!(error instanceof RequestRefused)) throw error
        throw new RequestRefused(error.message, { violation: error.violation, isByPolicy: error.isByPolicy, context })
      }
    }
  }

  function push(bytes: Buffer): readonly Buffer[] {
    const output: Buffer[] = []
    let input = bytes
    while (input.length > 0) {
      if (isWaiting) {
        held = Buffer.concat([held, input])
        break
      }
      if (isOpaque && authority !== null) searchOpaque ??= makeSearch(secretsFor(authority), 'opaque')
      if (searchOpaque !== null) {
        refuseViolation(searchOpaque(input))
        return [...output, input]
      }
      if (body === null) {
        const rest = takeHead(input, output)
        if (rest === null) break
        input = rest
      } else {
        const step = body.push(input)
        output.push(...step.output)
        if (step.rest === null) break
        endRequest()
        input = step.rest
      }
    }
    return output
  }

  function closeBody(): void {
    body?.close?.()
    body = null
  }

  function endRequest(): void {
    closeBody()
    isWaiting = isUpgrade
  }

  /** Reads a head if it is complete. Returns the bytes after it. */
  function takeHead(input: Buffer, output: Buffer[]): Buffer | null {
    const searchFrom = Math.max(0, held.length - 3)
    const all = trimLines(held.length === 0 ? input : Buffer.concat([held, input]))
    const end = all.indexOf('\r\n\r\n', Math.min(searchFrom, all.length))
    if (end > MAX_HEAD || (end === -1 && all.length > MAX_HEAD)) throw new RequestRefused('a head over 64 KiB')
    held = end === -1 ? Buffer.from(all) : Buffer.alloc(0)
    if (end === -1) return null
    requests += 1
    context = { method: null, host: null, path: null }
    beginRequest(parseHead(all.subarray(0, end)), output)
    return all.subarray(end + 4)
  }

  function beginRequest(parsed: RequestHead, output: Buffer[]): void {
    context = { method: parsed.method, host: parsed.host, path: parsed.target.split(/[?#]/)[0] ?? '' }
    if (authority !== null && parsed.host !== authority) throw new RequestRefused('a Host other than the server name')
    secrets = secretsFor(parsed.host)
    checkHead(parsed, secrets)
    const head = withoutUpgrade(substituteHead(parsed, secrets))
    body = openBody(head, secrets, budget)
    if (body.head === null) expectsContinue = requests === 1 && listOf(head.fields, 'expect').includes('100-continue')
    else output.push(renderHead(body.head))
    if (head.body === 0) endRequest()
  }

  /** Only the first request of a connection may upgrade it, and not to HTTP/2: its response is found without counting. */
  function withoutUpgrade(head: RequestHead): RequestHead {
    const protocols = listOf(head.fields, 'upgrade')
    isUpgrade = protocols.length > 0 && requests === 1 && !protocols.includes('h2c')
    if (protocols.length === 0 || isUpgrade) return head
    const dropped = ['upgrade', 'http2-settings', 'connection']
    return { ...head, fields: head.fields.filter(({ name }) => !dropped.includes(name.toLowerCase())) }
  }
}

/** Empty lines before a request are ignored, as servers do. */
function trimLines(bytes: Buffer): Buffer {
  let start = 0
  while (bytes.length - start >= 2 && bytes.readUInt16BE(start) === 0x0d0a) start += 2
  return bytes.subarray(start)
}
