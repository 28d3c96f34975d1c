import type { RunClaim } from '../claim.ts'

/** Who asks for the files of a volume. */
export type Asking = {
  /** Makes the claim. Called before a Pod is made. */
  readonly mount: MountClaim
  /**
   * The signal of the sandbox's start that asks. It waits for as long as this allows, also until fewer other volumes
   * are in use. Without one, a client asks, who gets an answer in `startLimitMs`.
   */
  readonly startSignal?: AbortSignal
}

/** Resolves with the claim of a volume and the namespace that it is in. */
export type MountClaim = (signal: AbortSignal) => Promise<{ readonly claim: RunClaim; readonly namespace: string }>

/** How long somebody waits for a Pod, and whether for a sandbox that starts. */
export type Wait = { readonly signal: AbortSignal; readonly isStart: boolean }
