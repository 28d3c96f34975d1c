import { startTestServer, TEST_SERVER_VARIABLE, type TestServer } from './postgres.ts'

let server: TestServer | null = null

/** Starts the one PostgreSQL of a whole run (`--test-global-setup`) and tells each test file of it by a variable. */
export async function globalSetup(): Promise<void> {
  if (process.env[TEST_SERVER_VARIABLE] !== undefined) return
  server = await startTestServer()
  process.env[TEST_SERVER_VARIABLE] = server.adminUrl
}

/** Ends that server, after the last test file. */
export async function globalTeardown(): Promise<void> {
  await server?.stop()
}
