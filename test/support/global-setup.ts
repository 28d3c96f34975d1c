import { findTakenInodes, readHostInodes, type HostInodes } from './host-inodes.ts'
import { startTestServer, TEST_SERVER_VARIABLE, type TestServer } from './postgres.ts'

let server: TestServer | null = null
let inodes: HostInodes = new Map()

/**
 * Starts one PostgreSQL for the whole run (`--test-global-setup`) and passes its URL to the test files in a variable. Reads the
 * owners of the host's files, to check after the run that no sandbox took one.
 */
export async function globalSetup(): Promise<void> {
  inodes = readHostInodes()
  if (process.env[TEST_SERVER_VARIABLE] !== undefined) return
  server = await startTestServer()
  process.env[TEST_SERVER_VARIABLE] = server.adminUrl
}

/**
 * Stops the PostgreSQL that `globalSetup` started. Node calls it after the last test file. Fails the run if a sandbox owns
 * a file or device node of the host.
 */
export async function globalTeardown(): Promise<void> {
  await server?.stop()
  const taken = findTakenInodes(inodes, readHostInodes())
  if (taken.length === 0) return
  process.exitCode = 1 // the runner of Node 24 never ends if this function throws
  process.stderr.write(`A sandbox of this run took files of the host, so the run has failed:\n${taken.join('\n')}\n`)
}
