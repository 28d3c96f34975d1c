import type { VmConfig } from './vm-config.ts'

/** What the process with the SDK is asked for, as one JSON text on its standard input. */
export type SdkRequest =
  /** Makes a sandbox and starts it. */
  | { readonly kind: 'create'; readonly plan: VmConfig }
  /** Starts one that was made before. */
  | { readonly kind: 'start'; readonly name: string }
  /** Answers with the configuration that `createTestSandbox` would use, and makes nothing. */
  | { readonly kind: 'build'; readonly plan: VmConfig }
  /** Answers with the path of a sandbox's agent socket. */
  | { readonly kind: 'socket'; readonly name: string }

/** How it answers, as one JSON text on its standard output. `code` is the SDK's own. */
export type SdkAnswer =
  | { readonly kind: 'done'; readonly value: unknown }
  | { readonly kind: 'failed'; readonly code: string; readonly message: string }
