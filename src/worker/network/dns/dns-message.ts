/** Reads and writes the parts of a DNS message that a forwarder needs (RFC 1035, 4.1). */
import { contains, parseCidr, type Cidr } from '../../../domain/cidr.ts'
import { SPECIAL_CIDRS } from '../../../domain/network/network-groups.ts'

/** The length of a name with the length of each label (RFC 1035, 2.3.4). */
export const NAME_MAX_BYTES = 255

const HEADER_BYTES = 12
const FLAG_RESPONSE = 0x8000
const OPCODE_MASK = 0x7800
const FLAG_RECURSION_DESIRED = 0x0100
const FLAG_RECURSION_AVAILABLE = 0x0080
/** The flags of a query that are passed on: recursion desired, and those of DNSSEC (AD and CD). */
const QUERY_FLAGS = 0x0130

const TYPE_OPT = 41
/** The size of an OPT record without options, which begins with the root name. */
const EDNS_BYTES = 11
const FLAG_DNSSEC_OK = 0x8000

/** Response codes (RFC 1035, 4.1.1). */
export const RCODE = { noError: 0, formatError: 1, serverFailure: 2, nameError: 3, refused: 5 } as const

/** The question of a query: its name in lower case, its type, and the offset in the message at which the question ends. */
type DnsQuestion = { readonly name: string; readonly type: number; readonly end: number }

/** Reads a standard query with exactly one question. Null for any other message. */
export function readQuery(message: Buffer): DnsQuestion | null {
  if (message.length < HEADER_BYTES) return null
  const flags = message.readUInt16BE(2)
  if ((flags & (FLAG_RESPONSE | OPCODE_MASK)) !== 0 || message.readUInt16BE(4) !== 1) return null
  return readQuestion(message)
}

/**
 * Makes a query that asks the same as the query of a sandbox. The sandbox chooses no other byte of it: the resolver may not be one,
 * but a server that reads commands from what it gets. Of EDNS (RFC 6891) only the size of answers and the DO bit are kept.
 */
export function rebuildQuery(query: Buffer, { end }: DnsQuestion): Buffer {
  const rebuilt = Buffer.from(query.subarray(0, end))
  rebuilt.writeUInt16BE(query.readUInt16BE(2) & QUERY_FLAGS, 2)
  rebuilt.fill(0, 6, HEADER_BYTES)
  const edns = query.subarray(end, end + EDNS_BYTES)
  if (edns.length < EDNS_BYTES || edns[0] !== 0 || edns.readUInt16BE(1) !== TYPE_OPT) return rebuilt
  const kept = Buffer.alloc(EDNS_BYTES)
  kept.writeUInt16BE(TYPE_OPT, 1)
  kept.writeUInt16BE(edns.readUInt16BE(3), 3)
  kept.writeUInt16BE(edns.readUInt16BE(7) & FLAG_DNSSEC_OK, 7)
  rebuilt.writeUInt16BE(1, 10)
  return Buffer.concat([rebuilt, kept])
}

/** Whether `answer` responds to `query`: it has the same id, and the same question regardless of case. */
export function answersQuery(answer: Buffer, query: Buffer): boolean {
  const question = readQuery(query)
  if (question === null || answer.length < question.end) return false
  if (answer.readUInt16BE(0) !== query.readUInt16BE(0) || (answer.readUInt16BE(2) & FLAG_RESPONSE) === 0) return false
  const type = query.subarray(question.end - 4, question.end)
  return readQuestion(answer)?.name === question.name && answer.subarray(question.end - 4, question.end).equals(type)
}

/** Creates a reply without records to a query. The reply repeats the question. */
export function emptyReply(query: Buffer, rcode: number): Buffer {
  const end = readQuestion(query)?.end
  const reply = Buffer.from(query.subarray(0, end ?? HEADER_BYTES))
  const queryFlags = query.readUInt16BE(2) & (OPCODE_MASK | FLAG_RECURSION_DESIRED)
  reply.writeUInt16BE(FLAG_RESPONSE | FLAG_RECURSION_AVAILABLE | queryFlags | rcode, 2)
  reply.writeUInt16BE(end === undefined ? 0 : 1, 4)
  reply.fill(0, 6, HEADER_BYTES)
  return reply
}

/** Returns the same message with another id. */
export function withMessageId(message: Buffer, id: number): Buffer {
  const copy = Buffer.from(message)
  copy.writeUInt16BE(id, 0)
  return copy
}

/**
 * Whether an answer contains a special address (private, loopback, link-local and so on) for a public name. DNS
 * rebinding attacks use such answers to reach hosts behind a firewall. Names for private use (`PRIVATE_SUFFIXES`) may
 * have special addresses. An invalid answer counts as rebinding.
 */
export function isRebinding(answer: Buffer): boolean {
  const question = readQuestion(answer)
  if (question === null) return true
  if (isPrivateName(question.name)) return false
  const addresses = readAddresses(answer, question.end)
  return addresses === null || addresses.some((address) => SPECIAL_CIDRS.some((block) => contains(block, address)))
}

/** The suffixes of names for private use: RFC 6762 and its appendix G, RFC 8375, and ICANN's `.internal`. */
const PRIVATE_SUFFIXES = ['local', 'internal', 'home.arpa', 'localhost', 'intranet', 'private', 'corp', 'home', 'lan']

function isPrivateName(name: string): boolean {
  return !name.includes('.') || PRIVATE_SUFFIXES.some((suffix) => name.endsWith(`.${suffix}`))
}

function readQuestion(message: Buffer): DnsQuestion | null {
  const labels: string[] = []
  let at = HEADER_BYTES
  for (;;) {
    const length = message[at]
    // also refuses a compressed name (two high bits): it refers to an earlier name, and before the question there is
    // none
    if (length === undefined || length > 63) return null
    at += 1
    if (at - HEADER_BYTES > NAME_MAX_BYTES) return null
    if (length === 0) break
    labels.push(message.toString('latin1', at, at + length).toLowerCase())
    at += length
  }
  if (at + 4 > message.length) return null
  return { name: labels.join('.'), type: message.readUInt16BE(at), end: at + 4 }
}

const TYPE_A = 1
const TYPE_AAAA = 28

/** Reads the addresses in the answer section. Null when the section is invalid. */
function readAddresses(message: Buffer, start: number): readonly Cidr[] | null {
  const addresses: Cidr[] = []
  let at = start
  for (let left = message.readUInt16BE(6); left > 0; left--) {
    const fixed = skipName(message, at)
    if (fixed === null || fixed + 10 > message.length) return null
    const type = message.readUInt16BE(fixed)
    const data = fixed + 10
    at = data + message.readUInt16BE(fixed + 8)
    if (at > message.length) return null
    const address = readAddress(type, message.subarray(data, at))
    if (address !== null) addresses.push(address)
  }
  return addresses
}

function readAddress(type: number, data: Buffer): Cidr | null {
  if (type === TYPE_A && data.length === 4) return parseCidr([...data].join('.'))
  if (type !== TYPE_AAAA || data.length !== 16) return null
  const isMapped = data.subarray(0, 10).every((byte) => byte === 0) && data.readUInt16BE(10) === 0xffff
  if (isMapped) return parseCidr([...data.subarray(12)].join('.'))
  return parseCidr((data.toString('hex').match(/.{4}/g) ?? []).join(':'))
}

function skipName(message: Buffer, start: number): number | null {
  let at = start
  for (;;) {
    const length = message[at]
    if (length === undefined) return null
    if (length >= 0xc0) return at + 2
    if (length === 0) return at + 1
    at += 1 + length
  }
}
