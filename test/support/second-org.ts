import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { PROGRAM } from './program-file.ts'

const LIMIT_MS = 120_000

/**
 * Creates an organization on a running server with the `sandyard` program, with these limits in place of its plan's. Resolves with a
 * key of the organization.
 */
export async function createSecondOrg(
  dataDir: string,
  slug: string,
  limits: Readonly<Record<string, string>> = {},
): Promise<string> {
  const run = promisify(execFile)
  const sandyard = async (...args: readonly string[]): Promise<string> => {
    const env = { ...process.env, SANDYARD_DATA_DIR: dataDir }
    return (await run(process.execPath, [PROGRAM, ...args], { env, timeout: LIMIT_MS })).stdout
  }
  await sandyard('org', 'create', slug, '--owner', `owner@${slug}.example`, '--slug', slug)
  for (const [limit, value] of Object.entries(limits)) await sandyard('quota', 'set', limit, value, '--org', slug)
  return (await sandyard('key', 'create', '--org', slug)).trim()
}
