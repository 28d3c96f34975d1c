import type * as microsandbox from 'microsandbox'
import type { RealServer } from './server.ts'

/** The unmodified public SDK (npm `microsandbox`). */
export type Sdk = typeof microsandbox

/** Loads the SDK with a server as its backend. The SDK reads its settings from the variables of this process. */
export async function loadSdk(server: RealServer): Promise<Sdk> {
  Object.assign(process.env, server.clientEnv)
  return import('microsandbox')
}

/** The demo image, which the server builds from programs of this machine. */
export const DEMO_IMAGE = 'localhost/demo'
