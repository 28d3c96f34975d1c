import type { LogPosition } from './log-protocol.ts'

/**
 * Positions as the public client carries them: standard base64 of `n:u8 + n × (u64 LE generation, u64 LE offset)`; a log of
 * one worker has one of them. Any other text kills the client's stream. Source: client traffic, section 7.
 */
const POSITIONS = 1
const BYTES = 1 + POSITIONS * 16

/** What a cursor is, for a refusal. */
export const LOG_CURSOR_RULE = 'the id of an event of this stream, unchanged'

/** The cursor of a position. */
export function encodeLogCursor({ generation, offset }: LogPosition): string {
  const bytes = Buffer.alloc(BYTES)
  bytes.writeUInt8(POSITIONS)
  bytes.writeBigUInt64LE(BigInt(generation), 1)
  bytes.writeBigUInt64LE(BigInt(offset), 9)
  return bytes.toString('base64')
}

/** The position of a cursor; null for a text that `encodeLogCursor` does not make. */
export function decodeLogCursor(text: string): LogPosition | null {
  const bytes = Buffer.from(text, 'base64')
  if (bytes.length !== BYTES || bytes.readUInt8() !== POSITIONS || bytes.toString('base64') !== text) return null
  const generation = Number(bytes.readBigUInt64LE(1))
  const offset = Number(bytes.readBigUInt64LE(9))
  return Number.isSafeInteger(generation) && Number.isSafeInteger(offset) ? { generation, offset } : null
}
