import type { BodyBudget } from './body-budget.ts'
import { makeChunkedDecoder, encodeChunk } from './chunked-body.ts'
import { makeSearch, makeViolationFinder } from '../placeholders/find-placeholders.ts'
import type { HostSecrets } from '../placeholders/host-secrets.ts'
import { makeReplacement } from '../placeholders/replace-placeholders.ts'
import { listOf, parseFields, renderHead, type RequestHead } from './request-head.ts'
import { RequestRefused, type Violation } from '../request-refused.ts'

/** The largest body of a fixed length in which values are put in: its new length must be known before it is sent. */
const MAX_SUBSTITUTED_BODY = 16 * 1024 * 1024
/** The memory that such a body takes at first. It doubles as bytes arrive, because a length alone must not take any. */
const FIRST_BYTES = 64 * 1024

export type BodyStep = {
  readonly output: readonly Buffer[]
  /** The bytes after the body, once it ended. */
  readonly rest: Buffer | null
}

export type RequestBody = {
  /** The head to send now, or null: it is sent with the body. */
  readonly head: RequestHead | null
  readonly push: (bytes: Buffer) => BodyStep
  /** Releases what the body holds. Called once, at its end or at the end of the connection. */
  readonly close?: () => void
}

/** Decides how the body of a request is forwarded. Values go into the body only where a secret of this host asks for it. */
export function openBody(head: RequestHead, secrets: HostSecrets, budget: BodyBudget): RequestBody {
  const search = makeSearch(secrets, 'body')
  const check = (bytes: Buffer): void => {
    refuseViolation(search(bytes))
  }
  const wanted = secrets.allowed.filter(({ substitution }) => substitution.body)
  const isEncoded = listOf(head.fields, 'content-encoding').some((coding) => coding !== 'identity')
  if (isEncoded && wanted.length > 0)
    return forwardBody(head, bothChecks(check, refusePlaceholders(wanted, secrets)), secrets)
  if (wanted.length === 0 || head.body === 0) return forwardBody(head, check, secrets)
  if (head.body === 'chunked') {
    const replacement = makeReplacement(wanted, secrets.index)
    return chunkedBody(head, { check, secrets, change: replacement.push, end: replacement.end })
  }
  if (head.body > MAX_SUBSTITUTED_BODY) throw new RequestRefused('a body too large for substitution')
  const replacement = makeReplacement(wanted, secrets.index)
  return wholeBody(head, head.body, { budget, check, change: replacement.push, end: replacement.end })
}

type Check = (bytes: Buffer) => void

export function refuseViolation(violation: Violation | null): void {
  if (violation !== null) throw new RequestRefused('a placeholder for another host', { violation })
}

function bothChecks(one: Check, other: Check): Check {
  return (bytes) => {
    one(bytes)
    other(bytes)
  }
}

/** A body that can't be changed must not have a placeholder whose value belongs into it. */
export function refusePlaceholders(wanted: HostSecrets['allowed'], { index }: Pick<HostSecrets, 'index'>): Check {
  const search = makeSearch({ allowed: [], forbidden: wanted, tolerated: [], index }, 'body')
  return (bytes) => {
    if (search(bytes) !== null) throw new RequestRefused('a placeholder in a body that can not be changed')
  }
}

function forwardBody(head: RequestHead, check: Check, secrets: HostSecrets): RequestBody {
  if (head.body === 'chunked')
    return chunkedBody(head, { check, secrets, change: (bytes) => bytes, end: () => Buffer.alloc(0) })
  let left = head.body
  return {
    head,
    push(bytes) {
      const data = bytes.subarray(0, left)
      check(data)
      left -= data.length
      return { output: [data], rest: left === 0 ? bytes.subarray(data.length) : null }
    },
  }
}

type ChangeOptions = {
  readonly check: Check
  readonly change: (bytes: Buffer) => Buffer
  readonly end: () => Buffer
}

type ChunkedOptions = ChangeOptions & { readonly secrets: HostSecrets }

function chunkedBody(head: RequestHead, { check, secrets, change, end }: ChunkedOptions): RequestBody {
  const decode = makeChunkedDecoder()
  return {
    head,
    push(bytes) {
      const { data, last } = decode(bytes)
      check(data)
      const output = encodeChunk(change(data))
      if (last === null) return { output, rest: null }
      const trailers = last.trailers.toString('latin1')
      parseFields(trailers.split('\r\n').slice(0, -1))
      refuseViolation(makeViolationFinder(secrets)(trailers, 'trailer'))
      const ending = [...encodeChunk(end()), Buffer.from('0\r\n'), last.trailers, Buffer.from('\r\n')]
      return { output: [...output, ...ending], rest: last.rest }
    },
  }
}

type WholeOptions = ChangeOptions & { readonly budget: BodyBudget }

/**
 * Keeps a body until it is complete, in one piece: many small parts would take far more memory than their bytes. Values are put in as it
 * arrives. Its end alone would otherwise take as long as all of it, while other connections wait.
 */
function wholeBody(head: RequestHead, length: number, { budget, check, change, end }: WholeOptions): RequestBody {
  let kept: Buffer = Buffer.alloc(0)
  let filled = 0
  let left = length

  function keep(data: Buffer): void {
    const needed = filled + data.length
    if (needed > kept.length) {
      const larger = Math.max(needed, 2 * kept.length, FIRST_BYTES)
      const size = needed <= length ? Math.min(length, larger) : larger
      if (!budget.acquire(size - kept.length)) throw new RequestRefused('no memory for a body with substitution')
      const grown = Buffer.allocUnsafeSlow(size)
      kept.copy(grown)
      kept = grown
    }
    data.copy(kept, filled)
    filled = needed
  }

  return {
    head: null,
    push(bytes) {
      const data = bytes.subarray(0, left)
      left -= data.length
      check(data)
      keep(change(data))
      if (left > 0) return { output: [], rest: null }
      keep(end())
      const body = kept.subarray(0, filled)
      const fields = head.fields.filter(({ name }) => !['content-length', 'expect'].includes(name.toLowerCase()))
      const changed = { ...head, fields: [...fields, { name: 'Content-Length', value: String(body.length) }] }
      return { output: [renderHead(changed), body], rest: bytes.subarray(data.length) }
    },
    close() {
      budget.release(kept.length)
    },
  }
}
