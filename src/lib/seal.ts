import { createCipheriv, createDecipheriv, createHmac } from 'node:crypto'
import type { Random } from './random.ts'

/** Seals what must not lie in a table in the clear. */
export interface Seal {
  /** Encrypts a text for one purpose and owner; the same `context` must be given to open it. */
  seal(text: string, context: string): Buffer
  /** Opens what `seal` made. Throws `UnsealError` when the key or the context differ, or a byte was changed. */
  open(sealed: Buffer, context: string): string
}

/** What was sealed can't be opened: it was sealed with another key or for another context, or was changed since. */
export class UnsealError extends Error {
  constructor(cause: unknown) {
    super('what was sealed can’t be opened: its key or context is another, or it was changed', { cause })
    this.name = 'CannotOpen'
  }
}

const NONCE_BYTES = 12
const TAG_BYTES = 16

/** AES-256-GCM under a 32-byte key; layout: version 1, nonce, tag, ciphertext. */
export function makeSeal(key: Buffer, random: Random): Seal {
  if (key.length !== 32) throw new Error(`the sealing key has ${String(key.length)} bytes; it needs 32`)
  return {
    seal(text, context) {
      const nonce = random.bytes(NONCE_BYTES)
      const cipher = createCipheriv('aes-256-gcm', key, nonce, { authTagLength: TAG_BYTES }).setAAD(
        Buffer.from(context),
      )
      const ciphertext = Buffer.concat([cipher.update(text, 'utf8'), cipher.final()])
      return Buffer.concat([Buffer.from([1]), nonce, cipher.getAuthTag(), ciphertext])
    },
    open(sealed, context) {
      if (sealed[0] !== 1) throw new UnsealError('a sealed value of an unknown version')
      const nonce = sealed.subarray(1, 1 + NONCE_BYTES)
      const tag = sealed.subarray(1 + NONCE_BYTES, 1 + NONCE_BYTES + TAG_BYTES)
      const ciphertext = sealed.subarray(1 + NONCE_BYTES + TAG_BYTES)
      try {
        // The length is named, because Node takes shorter tags otherwise, and a short one is easily forged.
        const decipher = createDecipheriv('aes-256-gcm', key, nonce, { authTagLength: TAG_BYTES })
          .setAAD(Buffer.from(context))
          .setAuthTag(tag)
        return Buffer.concat([decipher.update(ciphertext), decipher.final()]).toString('utf8')
      } catch (error) {
        throw new UnsealError(error)
      }
    },
  }
}

/** Tells two keys apart and nothing else of them: 32 bytes. */
export function keyFingerprint(key: Buffer): Buffer {
  return createHmac('sha256', key).update('sandyard: which sealing key').digest()
}
