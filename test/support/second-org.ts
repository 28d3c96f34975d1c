import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { PROGRAM } from './program-file.ts'

const LIMIT_MS = 120_000

/** Creates an organization on a running server with the `sandyard` program. Resolves with a key of the organization. */
export async function createSecondOrg(dataDir: string, slug: string): Promise<string> {
  const run = promisify(execFile)
  const sandyard = async (...args: readonly string[]): Promise<string> => {
    const env = { ...process.env, SANDYARD_DATA_DIR: dataDir }
    return (await run(process.execPath, [PROGRAM, ...args], { env, timeout: LIMIT_MS })).stdout
  }
  await sandyard('org', 'create', slug, '--owner', `owner@${slug}.example`, '--slug', slug)
  return (await sandyard('key', 'create', '--org', slug)).trim()
}
