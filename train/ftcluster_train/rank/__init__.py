"""Programs in or beside a rank."""
