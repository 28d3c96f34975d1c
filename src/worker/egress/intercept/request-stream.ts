import type { BodyBudget } from './body-budget.ts'
import { checkHead } from './check-head.ts'
import { makeSearch } from '../placeholders/find-placeholders.ts'
import type { HostSecrets } from '../placeholders/host-secrets.ts'
import { openBody, refuseViolation, type BodyStep, type RequestBody } from './request-body.ts'
import { listOf, parseHead, renderHead, type RequestHead } from './request-head.ts'
import { RequestRefused, type RequestContext } from '../request-refused.ts'
import { substituteHead } from './substitute.ts'

const MAX_HEAD = 64 * 1024

export type RequestStream = {
  /** Takes bytes of the client and returns what to forward, in steps of one request at most. Throws `RequestRefused`. */
  readonly push: (bytes: Buffer) => Iterable<readonly Buffer[]>
  /** True while a request to upgrade waits for its response. Bytes are kept meanwhile, so push none. */
  readonly awaitsUpgrade: () => boolean
  /** Goes on after the response to an upgrade, and returns what to forward. */
  readonly finishUpgrade: (isAccepted: boolean) => Iterable<readonly Buffer[]>
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
    push,
    awaitsUpgrade: () => isWaiting,
    finishUpgrade(isAccepted) {
      isWaiting = false
      isUpgrade = false
      if (isAccepted && secrets !== null) searchOpaque = makeSearch(secrets, 'opaque')
      const rest = held
      held = Buffer.alloc(0)
      return push(rest)
    },
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

  /** A piece may have thousands of requests. Others are served between its steps. */
  function* push(bytes: Buffer): Iterable<readonly Buffer[]> {
    let input: Buffer | null = bytes
    while (input !== null && input.length > 0) {
      const { output, rest }: BodyStep = withContext(input)
      yield output
      input = rest
    }
  }

  function withContext(input: Buffer): BodyStep {
    try {
      return takeStep(input)
    } catch (error) {
      if (!(error instanceof RequestRefused)) throw error
      throw new RequestRefused(error.message, { violation: error.violation, isByPolicy: error.isByPolicy, context })
    }
  }

  /** Takes a head, or what there is of a body or of other bytes. */
  function takeStep(input: Buffer): BodyStep {
    if (isWaiting) {
      held = Buffer.concat([held, input])
      return { output: [], rest: null }
    }
    if (isOpaque && authority !== null) searchOpaque ??= makeSearch(secretsFor(authority), 'opaque')
    if (searchOpaque !== null) {
      refuseViolation(searchOpaque(input))
      return { output: [input], rest: null }
    }
    if (body === null) return takeHead(input)
    const step = body.push(input)
    if (step.rest !== null) endRequest()
    return step
  }

  function closeBody(): void {
    body?.close?.()
    body = null
  }

  function endRequest(): void {
    closeBody()
    isWaiting = isUpgrade
  }

  /** Reads a head if it is complete. */
  function takeHead(input: Buffer): BodyStep {
    const searchFrom = Math.max(0, held.length - 3)
    const all = trimLines(held.length === 0 ? input : Buffer.concat([held, input]))
    const end = all.indexOf('\r\n\r\n', Math.min(searchFrom, all.length))
    if (end > MAX_HEAD || (end === -1 && all.length > MAX_HEAD)) throw new RequestRefused('a head over 64 KiB')
    held = end === -1 ? Buffer.from(all) : Buffer.alloc(0)
    if (end === -1) return { output: [], rest: null }
    requests += 1
    context = { method: null, host: null, path: null }
    const output = beginRequest(parseHead(all.subarray(0, end)))
    return { output, rest: all.subarray(end + 4) }
  }

  function beginRequest(parsed: RequestHead): readonly Buffer[] {
    context = { method: parsed.method, host: parsed.host, path: parsed.target.split(/[?#]/)[0] ?? '' }
    if (authority !== null && parsed.host !== authority) throw new RequestRefused('a Host other than the server name')
    secrets = secretsFor(parsed.host)
    checkHead(parsed, secrets)
    const head = withoutUpgrade(substituteHead(parsed, secrets))
    const opened = openBody(head, secrets, budget)
    body = opened
    if (opened.head === null) expectsContinue = requests === 1 && listOf(head.fields, 'expect').includes('100-continue')
    if (head.body === 0) endRequest()
    return opened.head === null ? [] : [renderHead(opened.head)]
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
