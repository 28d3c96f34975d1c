import type { Clock } from './clock.ts'
import type { Random } from './random.ts'

/** Generates identifiers. */
export interface Uuids {
  /**
   * Returns a UUIDv7 (RFC 9562, section 5.7). It sorts by its time of creation. The identifiers of one process never go
   * back.
   */
  next(): string
}

/**
 * Makes a generator of identifiers from a clock and randomness. Within one millisecond, identifiers count up in
 * `rand_a`. None has a time before `fromMs`, whatever the clock reports.
 */
export function makeUuids(clock: Clock, random: Random, fromMs = 0): Uuids {
  let lastMs = fromMs
  let counter = 0
  return {
    next() {
      const nowMs = clock.now().getTime()
      if (nowMs > lastMs) {
        lastMs = nowMs
        counter = random.bytes(2).readUInt16BE() & 0x7ff
      } else if (++counter > 0xfff) {
        lastMs += 1
        counter = 0
      }
      const bytes = random.bytes(16)
      bytes.writeUIntBE(lastMs, 0, 6)
      bytes.writeUInt16BE(0x7000 | counter, 6)
      bytes.writeUInt8((bytes.readUInt8(8) & 0x3f) | 0x80, 8)
      return formatUuid(bytes)
    },
  }
}

/** The time in a UUIDv7, in milliseconds since 1970. */
export function uuidTimeMs(uuid: string): number {
  return Number.parseInt(uuid.replaceAll('-', '').slice(0, 12), 16)
}

/** The smallest UUIDv7 with a given time. It turns a range of times into a range of identifiers. */
export function minUuidAt(instant: Date): string {
  const bytes = Buffer.alloc(16)
  bytes.writeUIntBE(Math.max(0, instant.getTime()), 0, 6)
  return formatUuid(bytes)
}

/** Less than every other UUID. */
export const NIL_UUID = '00000000-0000-0000-0000-000000000000'

const UUID_SHAPE = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i

/** Whether a text is a UUID of any version, in its hyphenated form. */
export function isUuid(text: string): boolean {
  return UUID_SHAPE.test(text)
}

function formatUuid(bytes: Buffer): string {
  const hex = bytes.toString('hex')
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20)}`
}
