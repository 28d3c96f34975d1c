declare const brand: unique symbol
type Branded<Name extends string> = string & { readonly [brand]: Name }

export type OrgId = Branded<'OrgId'>
export type ApiKeyId = Branded<'ApiKeyId'>
export type SandboxId = Branded<'SandboxId'>
/** One start of a sandbox; the fencing token of every message about it. */
export type RunId = Branded<'RunId'>
export type WorkerId = Branded<'WorkerId'>
export type EventId = Branded<'EventId'>
export type CredentialId = Branded<'CredentialId'>
export type VolumeId = Branded<'VolumeId'>
export type UserId = Branded<'UserId'>
export type MemberId = Branded<'MemberId'>

/** Gives a string its brand, where it enters the program: a parsed path parameter, a column, a new identifier. */
export function asId<Id extends Branded<string>>(text: string): Id {
  return text as Id // the one cast that brands
}
