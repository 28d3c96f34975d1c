import type { Socket } from 'node:net'
import ssh2 from 'ssh2'
import { findCertifiedEntry, findSshEntry, type SshEntry } from '../control/orgs/ssh-entries.ts'
import type { AuthenticationRateLimiter } from '../control/requests/request-rate-limiter.ts'
import type { BaseDeps } from '../control/deps.ts'
import { isSshCertificate, parseSshCertificate, type SshCertificate } from '../domain/orgs/ssh-certificate.ts'
import { parseSshKey } from '../domain/orgs/ssh-key.ts'
import { Problem } from '../domain/problem.ts'
import { verifySshSignature } from './verify-signature.ts'

export type Login = {
  readonly connection: ssh2.Connection
  readonly socket: Socket
  /** The first line of the client, which names its program. */
  readonly ident: string
  /** The address under which refused keys are counted. */
  readonly address: string
  readonly rates: AuthenticationRateLimiter
}

/** How many keys a client may offer in one connection. Agents with many keys need a few. */
const ATTEMPTS_MAX = 20
/** Every refusal takes this long, so that its time tells nothing about the reason. */
const REFUSAL_MS = 100
/** The longest user name that is looked up: a sandbox's name, a dot and a slug. */
const USER_MAX_CHARS = 400

/**
 * Waits for a client that proves a key of the organization of the sandbox in its user name. Refusals for unknown users,
 * unknown keys and bad signatures are the same. Resolves with null when the connection ends first.
 */
export function authenticateSsh(
  deps: Pick<BaseDeps, 'db' | 'clock' | 'log'>,
  { connection, socket, address, rates }: Login,
): Promise<SshEntry | null> {
  return new Promise((resolve) => {
    let attempts = 0
    let accepted: SshEntry | null = null
    connection.on('ready', () => {
      resolve(accepted)
    })
    socket.once('close', () => {
      resolve(null)
    })
    const refuse = async (context: ssh2.AuthContext): Promise<void> => {
      await deps.clock.sleep(REFUSAL_MS)
      if (socket.destroyed) return
      if (attempts >= ATTEMPTS_MAX) connection.end()
      else context.reject(['publickey'])
    }
    connection.on('authentication', (context) => {
      const answer = async (): Promise<void> => {
        if (context.method !== 'publickey') {
          // Clients first ask by the method `none` which methods there are. The answer is the same for everybody.
          if (attempts++ < ATTEMPTS_MAX) context.reject(['publickey'])
          else connection.end()
          return
        }
        attempts += 1
        if (isTooFast(rates, address)) {
          await refuse(context)
          return
        }
        const entry = await findEntry(deps, context, socket.remoteAddress ?? '')
        if (entry === null) {
          rates.countFailedAuthentication(address)
          await refuse(context)
          return
        }
        if (context.signature !== undefined) accepted = entry
        context.accept()
      }
      answer().catch((error: unknown) => {
        deps.log.warn({ error }, 'an SSH login could not be checked')
        connection.end()
      })
    })
  })
}

function isTooFast(rates: AuthenticationRateLimiter, address: string): boolean {
  try {
    rates.checkFailedAuthentications(address)
    return false
  } catch (error) {
    if (error instanceof Problem) return true
    throw error
  }
}

async function findEntry(
  deps: Pick<BaseDeps, 'db' | 'clock'>,
  context: ssh2.PublicKeyAuthContext,
  address: string,
): Promise<SshEntry | null> {
  const { username, key } = context
  if (username.length > USER_MAX_CHARS) return null
  if (isSshCertificate(key.data)) {
    const certificate = parseSshCertificate(key.data)
    if (certificate === null) return null
    const entry = await findCertifiedEntry(deps, username, { certificate, address })
    return isCertified(certificate) && isSignedBy(certificate.key, context) ? entry : null
  }
  const type = key.data.subarray(4, 4 + key.data.readUInt32BE(0)).toString('latin1')
  const line = parseSshKey(`${type} ${key.data.toString('base64')}`)
  const isProved = line !== null && (context.signature === undefined || verify(line.text, context))
  const entry = await findSshEntry(deps, username, key.data) // also for a bad signature, which then takes as long
  return isProved ? entry : null
}

function isCertified({ authority, signed, signature }: SshCertificate): boolean {
  const type = authority.subarray(4, 4 + (authority.length < 4 ? 0 : authority.readUInt32BE(0))).toString('latin1')
  return verifySshSignature(`${type} ${authority.toString('base64')}`, signed, signature)
}

/** Checks the client's signature for a certificate. The library leaves it as the client sent it, because it doesn't know the type. */
function isSignedBy(line: string, { blob, signature }: ssh2.PublicKeyAuthContext): boolean {
  if (signature === undefined) return true // the client only asks whether the key would do
  return blob !== undefined && verifySshSignature(line, blob, signature)
}

/** Checks the signature. RSA with SHA-1 is refused: without `hashAlgo`, the client used it. */
function verify(line: string, context: ssh2.PublicKeyAuthContext): boolean {
  const parsed = ssh2.utils.parseKey(line)
  if (parsed instanceof Error || context.blob === undefined || context.signature === undefined) return false
  if (parsed.type === 'ssh-rsa' && context.hashAlgo === undefined) return false
  return parsed.verify(context.blob, context.signature, context.hashAlgo) === true
}
